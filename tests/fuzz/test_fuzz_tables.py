"""Tables and packed files, made up as in ``test_fuzz_readers.py``: every row is one, or says what is wrong with it, or the whole
file is refused by an error that names it."""

import gzip
import json
import lzma

from erniecore_readers.zst import compress
from fuzzing import fuzzed, kept
from hypothesis import given
from hypothesis import strategies as st

from erniecore.data.reader import read_rows
from erniecore.errors import ErnieError, RowError

FUZZ = fuzzed(30)
WORDS = ["instruction", "output", "messages", ",", "\t", '"', '""', "\n", "\r\n", "\r", "\ufeff", "\0", ";", "'", "\\", " ", "a",
         "1e999", "nan", "[", '{"a": 1}', "\x1b[31m", "\u2028", "\ud7ff", "x" * 300]  # fmt: skip
PARTS = st.sampled_from(WORDS) | st.text(max_size=6)
ROWS = st.lists(st.fixed_dictionaries({"instruction": st.text(max_size=9), "output": st.text(max_size=9)}), max_size=6)


def plain(data):
    return data


PACKERS = {"": plain, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": compress}


@st.composite
def packed(draw, contents):
    """The ending of a packed file, and its bytes, of which a part may be changed."""
    ending = draw(st.sampled_from([*PACKERS]))
    data = PACKERS[ending](draw(contents))
    for _ in range(draw(st.integers(0, 2))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 9))
        data = data[:at] + draw(st.binary(max_size=9) | st.just(data[:30])) + data[at + length :]
    return ending, data


def read(file):
    """Read all rows; the error that the file is refused by, else ``None``."""
    try:
        for position, row in read_rows(file):
            assert position >= 1
            assert isinstance(row, RowError) or json.dumps(row)
    except ErnieError as error:
        return error
    return None


@FUZZ
@given(st.sampled_from(["csv", "tsv"]), packed(st.lists(PARTS, max_size=30).map(lambda parts: "".join(parts).encode())))
@kept("kind", "content")
def test_tables(tmp_path, kind, content):
    ending, data = content
    file = tmp_path / f"rows.{kind}{ending}"
    file.write_bytes(data)
    error = read(file)
    assert error is None or file.name in str(error), error


@FUZZ
@given(packed(ROWS.map(lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode())))
@kept("content")
def test_packed_rows(tmp_path, content):
    ending, data = content
    file = tmp_path / f"rows.jsonl{ending}"
    file.write_bytes(data)
    error = read(file)
    assert error is None or file.name in str(error), error
