"""The same rows in every container and from every place are the same run, bit for bit: straight, continued, from the cache."""

import csv
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest
from erniecore_readers.zst import compress
from file_server import FileServer

from erniecore.api import Exit

ROWS = [{"instruction": f"say {i}, twice", "output": f"{i} is\nsaid"} for i in range(24)]
ROWS[7]["output"] = ""  # dropped


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows, path, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["instruction", "output"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path.read_bytes()


def split(rows, folder, write):
    """The rows in three files: in the order of their names, a hidden file and a note beside."""
    folder.mkdir()
    for i in range(3):
        write(folder / f"part-{i}.jsonl", lines(rows[i * 8 : i * 8 + 8]))
    write(folder / ".part-0.jsonl", b"not read")
    write(folder / "note.md", b"not read")


def write_all(at, served):
    """What ``data.train`` may be, all with the same rows."""
    (at / "rows.jsonl").write_bytes(lines(ROWS))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), at / "rows.parquet")
    packed = compress(table(ROWS, at / "rows.csv"))
    (at / "rows.csv.zst").write_bytes(packed)
    (at / "rows.tsv.xz").write_bytes(lzma.compress(table(ROWS, at / "rows.tsv", "\t")))
    split(ROWS, at / "folder", lambda path, data: path.write_bytes(data))
    served.files["rows.csv.zst"] = packed
    names = ["rows.jsonl", "rows.parquet", "rows.csv", "rows.csv.zst", "rows.tsv.xz", "folder", "folder/part-*.jsonl"]
    return [*(at / name for name in names), f"{served.url}/rows.csv.zst"]


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = FileServer()
    yield server
    server.close()


def test_every_container_is_the_same_run(ernie, runner, tmp_path, served):
    curves = {}
    for number, source in enumerate(write_all(tmp_path, served)):
        out, cache = f"run{number}", f"data.cache={tmp_path / 'tokens'}"
        words = ["run", *runner.words(out, data__train=source, train__max_steps=4), cache, "data.max_drop=0.1"]
        stopped = ernie(*words, "run.until=2")
        assert stopped.code == Exit.PREEMPTED, stopped.err
        finished = ernie(*words)
        assert finished.code == Exit.OK, finished.err
        report = json.loads((runner.directory / out / "data_report.json").read_text())["train"]
        assert [report[name] for name in ("rows", "kept", "truncated", "dropped")] == [24, 23, 0, 1]
        assert report["errors"][0]["line"] == (8 if number in (0, 1, 5, 6) else 16)
        assert [entry["made"] for entry in report["cache"]["entries"]] == [0]
        curves[str(source)] = runner.curve(out)
    straight = ernie(
        "run", *runner.words("straight", data__train=tmp_path / "rows.jsonl", train__max_steps=4), "data.max_drop=0.1"
    )
    assert straight.code == Exit.OK
    assert set(map(str, curves.values())) == {str(runner.curve("straight"))}


def test_a_file_that_changed_is_not_continued_upon(ernie, runner, tmp_path, served, refused):
    write_all(tmp_path, served)
    words = ["run", *runner.words(data__train=f"{served.url}/rows.csv.zst", train__max_steps=4), "data.max_drop=0.1"]
    assert ernie(*words, "run.until=2").code == Exit.PREEMPTED
    served.files["rows.csv.zst"] = compress(table(ROWS[::-1], tmp_path / "other.csv"))
    refused(ernie(*words), Exit.DATA, "rows.csv.zst", remedy="restore the file")
