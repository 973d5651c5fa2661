"""A small tokenizer, made-up templates and samples."""

from small_text import plain as plain
from small_text import tokenizer as tokenizer
from small_text import trained as trained
from toy_rows import jsonl as jsonl
from toy_rows import make_sample as make_sample
from toy_rows import source as source
from toy_rows import toy as toy
