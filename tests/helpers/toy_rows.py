"""A made-up format and encoder, and data files for them."""

import json

import numpy as np
import pytest

from erniecore.data import encode
from erniecore.data.parsing import RowParser
from erniecore.data.sources import DataSource
from erniecore.types.records import Origin
from erniecore.types.samples import IGNORE, Sample


@pytest.fixture(scope="session")
def make_sample():
    """A sample of n tokens whose content says who it is."""

    def make(n, tag=1, fields=None, origin=None):
        ids = np.arange(n, dtype=np.int64) + 1000 * tag
        labels = np.where(np.arange(n) % 2, ids + 1, IGNORE)
        return Sample(
            input_ids=ids,
            labels=labels,
            position_ids=np.arange(n, dtype=np.int64),
            end_rows=np.full(n, n, np.int32),
            fields=fields or {},
            origin=origin or Origin("f.jsonl", tag),
        )

    return make


TOY = """
    import numpy as np
    from erniecore.api import Field, RowError, hookimpl
    from erniecore.api.data import IGNORE, Document, FormatConfig, FormatPlugin, Sample

    class Config(FormatConfig):
        key: str = Field("text", description="Which field.")

    class Words(FormatPlugin):
        name, summary, Config = "words", "texts", Config
        @hookimpl
        def ernie_match_row(self, row): return "text" in row
        @hookimpl
        def ernie_parse_row(self, config, row, origin):
            if config.key not in row:
                raise RowError("no text", code="ERN-D030", where=f"$.{config.key}")
            if row[config.key] == "boom":
                raise KeyError("boom")
            return Document(row[config.key], origin)

    class Encoder:
        accepts = (Document,)
        def __init__(self, limit): self.limit = limit
        def encode(self, record):
            ids = np.frombuffer(record.text.encode(), np.uint8).astype(np.int64)
            if not len(ids):
                return []
            if record.text == "bug":
                raise ZeroDivisionError
            cut = ids[: self.limit]
            n = len(cut)
            why = "cut" if n < len(ids) else ""
            full = np.full(n, n, np.int32)
            return [Sample(cut, cut, np.arange(n), full, truncated=why, origin=record.origin)] * (1 + (n == 3))

    plugin = Words()
"""


@pytest.fixture
def toy(site):
    """Module with a format ``words`` (``Words``, ``Config``, ``plugin``) and an ``Encoder`` of bytes."""
    site.add("toywords", {"erniecore.formats": {"words": "toywords:plugin"}}, {"toywords.py": TOY})
    import toywords

    return toywords


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 3 rows."""
    monkeypatch.setattr(encode, "_CHUNK_ROWS", 3)


@pytest.fixture
def jsonl(tmp_path):
    def write(name, count, bad=()):
        rows = [
            "{" if i in bad else json.dumps({"text": "abcdefgh"[: 1 + i % 8] + "é" * (i % 3)}) for i in range(count)
        ]
        path = tmp_path / name
        path.write_text("".join(row + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def source(toy):
    return lambda path, **config: DataSource(str(path), RowParser(toy.plugin, toy.Config(**config)))
