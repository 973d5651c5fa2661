"""Tables of text (csv, tsv) and files in xz and zst that are cut, changed, endless or something else: an error of the file or
of the row, within limits.
"""

import json
import lzma
import struct
import zlib

import pytest
from erniecore_readers.zst import compress
from hostile_files import DEEP, SPECIAL, assert_refused, damage, special

from erniecore.errors import Exit

pytestmark = pytest.mark.area("csv, tsv, xz, zst")
ENDED = {0, Exit.DATA, Exit.ENVIRONMENT, Exit.MEMORY}
LONG = 33 << 20  # bytes, more than a row may have
PACK = {"xz": lzma.compress, "zst": compress}
ROWS = "".join(json.dumps({"instruction": f"{n}?", "output": str(n)}) + "\n" for n in range(50)).encode()
TABLE = b"instruction,output\n" + b"".join(b'%d?,"a ""%d"""\n' % (n, n) for n in range(50))


def xz_of(dictionary):
    """A stream of xz whose decoder is told to take a dictionary: 32 is 256 MiB, 40 is 4 GiB, 41 and more are not allowed."""
    packed = bytearray(lzma.compress(ROWS))
    end = 12 + 4 * (packed[12] + 1)  # of the block's header: its size, flags, the filters, padding, a checksum
    at = packed.index(b"\x21\x01", 12) + 2
    packed[at] = dictionary
    packed[end - 4 : end] = struct.pack("<I", zlib.crc32(packed[12 : end - 4]))
    return bytes(packed)


def zst_frame(window=b"\xa8", size=b"\x01\x00\x00"):
    """The beginning of a frame with this window (0xa8: 2 GiB)."""
    return b"\x28\xb5\x2f\xfd\x00" + window + size


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["flip", "cut", "noise", "extra", "hole"])
@pytest.mark.parametrize("name", ["d.jsonl.xz", "d.jsonl.zst", "d.csv.xz", "d.tsv.zst"])
def test_a_damaged_stream(ernie, box, name, kind, seed):
    file = box / name
    file.write_bytes(PACK[name.rpartition(".")[2]](ROWS if "jsonl" in name else TABLE))
    damage(file, kind, seed)
    assert_refused(ernie("data", "check", file), ENDED)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["flip", "cut", "noise", "extra", "hole"])
@pytest.mark.parametrize("name", ["d.csv", "d.tsv"])
def test_a_damaged_table(ernie, box, name, kind, seed):
    file = box / name
    file.write_bytes(TABLE.replace(b",", b"\t") if name == "d.tsv" else TABLE)
    damage(file, kind, seed)
    assert_refused(ernie("data", "check", file), ENDED)


NO_STREAMS = [
    b"",
    b"\xfd7zXZ\0",
    b"\xfd7zXZ\0" * 9,
    b"\x28\xb5\x2f\xfd",
    b"\x1f\x8b",
    b"\xff" * 4096,
    b"{}",
    bytes(4096),
    ROWS,
]


@pytest.mark.parametrize("content", NO_STREAMS, ids=lambda content: repr(content[:8]))
@pytest.mark.parametrize(
    "name", ["d.jsonl.xz", "d.json.zst", "d.csv.xz", "d.txt.zst", "d.parquet.xz", "d.xz", "d.gz.xz"]
)
def test_what_is_no_stream(ernie, box, name, content):
    (box / name).write_bytes(content)
    assert_refused(ernie("data", "check", box / name), {Exit.DATA, Exit.USAGE})


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("levels", [1, 2])
def test_a_stream_that_unpacks_to_much_more(ernie, box, kind, levels):
    data = b"x" * (65 << 20)
    for _ in range(levels):
        data = PACK[kind](data)
    file = box / ("d.jsonl" + f".{kind}" * levels)
    file.write_bytes(data)
    assert_refused(ernie("data", "check", file), {Exit.DATA}, str(file))


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.txt", "d.json"])
def test_an_endless_packed_line_ends_by_its_limit(ernie, box, kind, name):
    file = box / f"{name}.{kind}"
    file.write_bytes(PACK[kind](b"x" * (16 << 20)) * 256)  # four gibibytes of one line
    assert_refused(ernie("data", "check", file), {Exit.DATA}, str(file))


@pytest.mark.parametrize("dictionary", [32, 36, 40, 41, 63])
def test_a_stream_that_asks_for_much_memory(ernie, box, dictionary):
    (box / "d.jsonl.xz").write_bytes(xz_of(dictionary))
    assert_refused(ernie("data", "check", box / "d.jsonl.xz"), {Exit.DATA}, "d.jsonl.xz")


#: a frame that is skipped has a size of its own
SKIPPED = b"\x50\x2a\x4d\x18"


@pytest.mark.parametrize(
    "content",
    [
        zst_frame(),
        zst_frame(b"\xff"),
        zst_frame(size=b"\xff\xff\xff"),
        compress(ROWS) + SKIPPED + b"\xff\xff\xff\xff" + bytes(64),
        SKIPPED + b"\x04\x00\x00\x00" + bytes(4) + zst_frame(),
        compress(ROWS) + zst_frame(),
        compress(ROWS) + b"\xff" * 64,
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_frames_that_lie(ernie, box, content):
    (box / "d.jsonl.zst").write_bytes(content)
    assert_refused(ernie("data", "check", box / "d.jsonl.zst"), {Exit.DATA}, "d.jsonl.zst")


@pytest.mark.parametrize("kind", PACK)
def test_many_streams_of_nothing(ernie, box, kind):
    (box / f"d.jsonl.{kind}").write_bytes(PACK[kind](b"") * 50_000 + PACK[kind](ROWS))
    outcome = ernie("data", "check", box / f"d.jsonl.{kind}")
    assert_refused(outcome, {0})
    assert "50 rows" in outcome[1]


def test_padding_without_an_end(ernie, box):
    file = box / "d.jsonl.xz"
    file.write_bytes(lzma.compress(ROWS))
    with file.open("ab") as stream:
        stream.truncate(256 << 20)
    assert_refused(ernie("data", "check", file), {0})


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.jsonl.xz", "d.jsonl.zst", "d.csv.xz"])
def test_what_is_no_file_is_never_read(ernie, box, name, kind):
    special(box / name, kind)
    assert_refused(ernie("data", "check", box / name), {Exit.DATA})


COLUMNS = [f"field{n}" for n in range(100_000)]
NESTED = "[" * DEEP + "]" * DEEP
#: name -> (content of a table, what is said of it); all are refused, or some of their rows
TABLES = {
    "a quote without an end": (b'instruction,output\na,"b\n' + b"c,d\n" * 9, "a quote is not closed"),
    "a quote without an end, of much": (b'instruction,output\na,"b\n' + b"c,d\n" * (LONG // 4), "a quote is not closed"),
    "a quote in the first line": (b'instruction,"output\n' + b"c,d\n" * (LONG // 4), "a quote is not closed"),
    "a quote alone": (b'"', "a quote is not closed"),
    "quotes alone": (b'"' * (LONG // 8), "ERN-D"),
    "a cell beyond the limit": (b"instruction,output\na," + b"b" * LONG + b"\nc,d\n", "the row is too long"),
    "a quoted cell beyond the limit": (b'instruction,output\na,"' + b"b" * LONG + b'"\nc,d\n', "ERN-D"),
    "a first line beyond the limit": (b"a" * LONG + b"\nc,d\n", "ERN-D"),
    "a first line of delimiters": (b"," * 100_000 + b"\na,b\n", "the first line does not name the columns"),
    "names that are equal": (b"a,b,a\n1,2,3\n", "names a column twice"),
    "names that are empty": (b"instruction,,\na,b,c\n", "ERN-D"),
    "many names, two equal": (",".join([*COLUMNS, COLUMNS[-1]]).encode() + b"\na,b\n", "names a column twice"),
    "many columns": (",".join(COLUMNS).encode() + b"\n" + b"," * 99_999 + b"\n" + b"a," * 99_999 + b"a\n", "ERN-D"),
    "many cells": (b"instruction,output\n" + b"a," * 100_000 + b"\n", "another number of cells"),
    "NUL": (b"instruction,output\na\0b,c\n" + bytes(100) + b"\n", "ERN-D"),
    "NUL in a name": (b"instr\0uction,output\na,c\n", "ERN-D"),
    "NUL alone": (bytes(1 << 20), "ERN-D"),
    "UTF-16": ("instruction,output\na,b\n".encode("utf-16"), "the file is UTF-16"),
    "UTF-16 without a mark": ("instruction,output\na,b\n".encode("utf-16-le"), "ERN-D"),
    "UTF-32": ("instruction,output\na,b\n".encode("utf-32"), "ERN-D"),
    "Latin-1": ("instruction,output\né,ü\n".encode("latin-1"), "the text is not UTF-8"),
    "Latin-1 in a name": ("instruction,öutput\na,b\n".encode("latin-1"), "ERN-D"),
    "GB18030": ("instruction,output\n你好,世界\n".encode("gb18030"), "the text is not UTF-8"),
    "a name that commands": (b"\x1b[31m\x9b2J,\x07\na,b\n", "ERN-D"),
    "a name that commands, twice": (b"\x1b[31m,\x1b[31m\na,b\n", "names a column twice"),
    "a long name": (b"a" * 1_000_000 + b",b\n1,2\n", "ERN-D"),
    "a long name, twice": ((b"a" * 1_000_000 + b",") * 2 + b"b\n1,2,3\n", "names a column twice"),
    "old line ends": (b"instruction,output\ra,b\rc,d\r", "ERN-D"),
    "a cell nested deeply": (f'messages,output\n"{NESTED}",b\n'.encode(), "ERN-D"),
    "a cell of digits": (b"instruction,label\na," + b"9" * 6000 + b"\n", "ERN-D"),
    "half a message": (b'messages,system\n"[{""role"": ""user""",\n', "the cell is not valid JSON"),
    "only names": (b"instruction,output\n", "the file holds no rows"),
    "only line ends": (b"\n" * 1000, "ERN-D"),
    "another delimiter": (b"instruction;output\na;b\n", "separated by"),
}  # fmt: skip


@pytest.mark.parametrize("delimiter", ["csv", "tsv"])
@pytest.mark.parametrize("table", TABLES)
def test_a_hostile_table_is_named(ernie, box, table, delimiter):
    content, said = TABLES[table]
    if delimiter == "tsv":
        content = content.replace(b",", b"\t") if said != "separated by" else content.replace(b";", b",")
    (box / f"d.{delimiter}").write_bytes(content)
    assert_refused(ernie("data", "check", box / f"d.{delimiter}"), {Exit.DATA}, said, f"d.{delimiter}")


def test_an_endless_line_of_a_table_is_one_row_of_many(ernie, box):
    file = box / "d.csv"
    file.write_bytes(TABLE)
    with file.open("ab") as stream:
        stream.truncate(200 << 20)  # a hole, read as NUL characters
    outcome = ernie("data", "check", file)
    assert_refused(outcome, {Exit.DATA})
    assert "51 rows = 50 kept + 0 truncated + 1 dropped" in outcome[1]
