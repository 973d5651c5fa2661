"""A small tokenizer, with and without a made-up chat template."""

from small_text import plain as plain
from small_text import tokenizer as tokenizer
from small_text import trained as trained
