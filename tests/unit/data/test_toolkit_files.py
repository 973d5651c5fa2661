"""Data files of other toolkits, written after their documentation (``tests/fixtures/toolkits``): read to the expected records, or
refused with what to change; the same rows in every container. An offered rename is tried, and works.
"""

import csv
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from erniecore_readers.zst import compress

from erniecore.config.core import Source
from erniecore.data.reader import read_rows
from erniecore.data.sources import resolve
from erniecore.errors import DataError, RowError
from erniecore.registry import load
from erniecore.types.records import Document, Origin, Preference, UnpairedPreference

FOLDER = Path(__file__).parents[2] / "fixtures" / "toolkits"
#: file -> its format and records, or what its rows lack
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
RENAME = re.compile(r"formats\.([\w-]+)\.columns\.(\w+)=(\S+)")


def said(messages):
    texts = []
    for m in messages:
        marks = [f"thinks {m.reasoning}"] if m.reasoning else []
        marks += [f"calls {call.name} {call.arguments}" for call in m.tool_calls] + [one.kind for one in m.media]
        marks += ["no loss"] if m.role == "assistant" and not m.learn else []
        texts.append(" ".join([f"{m.role}: {m.content}", *(f"[{mark}]" for mark in marks)]))
    return " | ".join(texts)


def described(record):
    if isinstance(record, Document):
        return f"document: {record.text}"
    tools = f" (tools {', '.join(t.get('function', t)['name'] for t in record.tools)})" if record.tools else ""
    if isinstance(record, Preference):
        margin = "" if record.margin is None else f" (margin {record.margin})"
        return f"{said(record.prompt)} || {said(record.chosen)} > {said(record.rejected)}{margin}{tools}"
    rated = {True: " => good", False: " => bad"}[record.desirable] if isinstance(record, UnpairedPreference) else ""
    return said(record.messages) + rated + tools


def read(path, form="auto", sections=None):
    """What is expected of a file: its format and records, or the remedy of its error."""
    try:
        (source,) = resolve([Source(path=str(path))], form, sections)
        records = [source.parser(row, Origin(path.name, line)) for line, row in read_rows(source.path)]
    except (DataError, RowError) as e:
        return {"fix": e.fix, "lines": 1 + str(e).count("\n")}
    return {"format": source.parser.name, "records": [described(record) for record in records]}


def to_csv(rows, folder):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "rows.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        for row in rows:
            table.writerow({n: json.dumps(v) if isinstance(v, list | dict) else v for n, v in row.items()})
    return folder / "rows.csv"


def to_parquet(rows, folder):
    plain = [{n: json.dumps(v) if n == "tools" and isinstance(v, list) else v for n, v in row.items()} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), folder / "rows.parquet")
    return folder / "rows.parquet"


def to_zst(rows, folder):
    (folder / "rows.jsonl.zst").write_bytes(compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return folder / "rows.jsonl.zst"


def test_every_file_has_its_expectation():
    assert sorted(EXPECTED) == sorted(p.name for p in FOLDER.iterdir() if p.name != "expected.json")
    assert {expected["lines"] for expected in EXPECTED.values() if "fix" in expected} == {1}
    assert len(EXPECTED) >= 30


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_read_or_refused_with_what_to_change_in_every_container(name, tmp_path):
    path, expected = FOLDER / name, EXPECTED[name]
    assert read(path) == expected
    rows = [row for _, row in read_rows(path)]
    for container in (to_csv, to_parquet, to_zst):
        assert read(container(rows, tmp_path)) == expected, container.__name__
    renamed = RENAME.findall(expected.get("fix", ""))
    if renamed:
        form = renamed[0][0]
        config = load("format", form).Config(columns={field: column for _, field, column in renamed})
        assert read(path, form, {form: config})["records"]
