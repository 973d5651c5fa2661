"""Tables and packed files that are cut, changed or no tables: an error of the file within limits, or other rows."""

import gzip
import json

import pytest
from hostile_files import assert_refused, damage

from erniecore.errors import Exit

pytestmark = pytest.mark.area("parquet, arrow, gzip")
ENDED = {0, Exit.DATA, Exit.ENVIRONMENT, Exit.MEMORY}
ROWS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}]} for n in range(50)
]


def parquet(path):
    import pyarrow as pa
    from pyarrow import parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path)


def arrow(path):
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def packed(path):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))


MAKERS = {"d.parquet": parquet, "d.arrow": arrow, "d.jsonl.gz": packed}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["flip", "cut", "noise"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_table(ernie, box, name, kind, seed):
    file = box / name
    MAKERS[name](file)
    damage(file, kind, seed)
    assert_refused(ernie("data", "check", file), ENDED)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 2, b"ARROW1\0\0", b"\x1f\x8b", b"\xff" * 4096, b"{}"],
                         ids=lambda content: repr(content[:8]))  # fmt: skip
@pytest.mark.parametrize("name", [*MAKERS, "d.feather", "d.json.gz", "d.txt.gz", "d.csv", "d.tsv"])
def test_a_file_that_is_no_table(ernie, box, name, content):
    (box / name).write_bytes(content)
    assert_refused(ernie("data", "check", box / name), ENDED | {Exit.USAGE})


@pytest.mark.parametrize("levels", [1, 2])
def test_a_file_that_unpacks_to_much_more(ernie, box, levels):
    data = b"x" * (64 << 20)
    for _ in range(levels):
        data = gzip.compress(data, 9)
    (box / "d.jsonl.gz").write_bytes(data)
    assert_refused(ernie("data", "check", box / "d.jsonl.gz"), {Exit.DATA})


def test_an_endless_packed_line_ends_by_its_limit(ernie, box):
    part = gzip.compress(b"x" * (16 << 20), 9)
    (box / "d.jsonl.gz").write_bytes(part * 256)  # four gibibytes of one line
    assert_refused(ernie("data", "check", box / "d.jsonl.gz"), {Exit.DATA})
