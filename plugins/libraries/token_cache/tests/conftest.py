"""A small tokenizer, a made-up format, and a cache of small shards."""

import pytest
from erniecore_token_cache import cache
from small_text import plain as plain
from small_text import tokenizer as tokenizer
from small_text import trained as trained
from toy_rows import jsonl as jsonl
from toy_rows import make_sample as make_sample
from toy_rows import small_chunks as small_chunks
from toy_rows import source as source
from toy_rows import toy as toy


@pytest.fixture
def small(small_chunks, monkeypatch):
    """Chunks of 3 rows, shards of 2 chunks."""
    monkeypatch.setattr(cache, "_SHARD_CHUNKS", 2)
