"""Rows of parquet and arrow files and of data set directories."""

import datetime
import decimal
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from erniecore_columnar import tables
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore import codes
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.data.shards import content_of, shards_of, unread
from erniecore.errors import DataError, EnvironmentFault, RowError

TALK = Path(__file__).parents[4] / "tests/fixtures/datasets/talk"
ROWS = [{"text": f"row {i}", "n": i, "deep": [{"a": "b", "c": [i, 2]}]} for i in range(7)]


def rows(path, **limits):
    return list(read_rows(Path(path), ReadLimits(**limits)))


def write_stream(table, path, batch=3):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)


def write_file(table, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_parquet(table, path):
    pq.write_table(table, path, row_group_size=3)


WRITERS = [(write_parquet, "d.parquet"), (write_stream, "d.arrow"), (write_file, "d.arrow")]


@pytest.mark.parametrize(("write", "name"), WRITERS)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_rows_have_their_numbers_whatever_the_batches(tmp_path, monkeypatch, write, name, size):
    monkeypatch.setattr(tables, "_BATCH_BYTES", size)
    write(pa.Table.from_pylist(ROWS), tmp_path / name)
    assert rows(tmp_path / name) == list(enumerate(ROWS, 1))


def test_a_null_is_a_field_that_is_not_there(tmp_path):
    given_rows = [{"a": None, "b": [{"c": None, "d": "e"}]}, {"a": "f", "b": [None]}]
    pq.write_table(pa.Table.from_pylist(given_rows), tmp_path / "d.parquet")
    assert [row for _, row in rows(tmp_path / "d.parquet")] == [{"b": [{"d": "e"}]}, {"a": "f", "b": [None]}]


def test_what_json_does_not_know_becomes_text(tmp_path):
    row = {
        "t": datetime.datetime(2024, 5, 6, 7),
        "d": decimal.Decimal("1.50"),
        "b": b"abc",
        "image": {"bytes": b"\xff"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "d.parquet")
    found = {"t": "2024-05-06T07:00:00", "d": "1.50", "b": "3 bytes", "image": {"bytes": "1 bytes"}}
    assert rows(tmp_path / "d.parquet") == [(1, found)]


def test_every_check_of_the_reader_applies(tmp_path):
    texts = ["fine", "N\0UL", "long" * 20, "fine"]
    table = pa.table({"text": texts, "score": [1.0, 1.0, 1.0, float("nan")]})
    pq.write_table(table, tmp_path / "d.parquet")
    found = rows(tmp_path / "d.parquet", row_bytes=60)
    assert [getattr(r, "code", "") for _, r in found] == ["", codes.NUL, codes.TOO_LONG_ROW, codes.NOT_FINITE]


def test_bytes_that_are_no_text_cost_their_row(tmp_path):
    column = pa.array([b"a", b"\xff\xfe", b"c"]).view(pa.string())
    pq.write_table(pa.table({"n": [1, 2, 3], "text": column}), tmp_path / "d.parquet")
    (_, first), (line, error), (_, last) = rows(tmp_path / "d.parquet")
    assert (first, last) == ({"n": 1, "text": "a"}, {"n": 3, "text": "c"})
    assert isinstance(error, RowError)
    assert (line, error.code, error.where) == (2, codes.BAD_UTF8, "$.text")


def test_columns_of_the_same_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    write_stream(table, tmp_path / "d.arrow")
    with pytest.raises(DataError) as e:
        rows(tmp_path / "d.arrow")
    assert e.value.code == codes.DUPLICATE_KEY


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_cut_files_are_damaged(tmp_path, write, name):
    path = tmp_path / name
    write(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError) as e:
        rows(path)
    assert (e.value.code, e.value.where) == (codes.DAMAGED_TABLE, str(path))


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_wrong_bytes_are_never_more_than_an_error(tmp_path_factory, write, name):
    path = tmp_path_factory.mktemp("table") / name
    write(pa.Table.from_pylist(ROWS), path)
    good = path.read_bytes()

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), min_size=1, max_size=4))
    def check(changes):
        data = bytearray(good)
        for place, value in changes:
            data[place] = value
        path.write_bytes(data)
        with suppress(DataError):
            rows(path)

    check()


@pytest.mark.parametrize("name", ["d.parquet", "d.arrow"])
def test_missing_and_empty_files(tmp_path, name):
    with pytest.raises(DataError) as e:
        rows(tmp_path / name)
    assert e.value.code == codes.MISSING_FILE
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as e:
        rows(tmp_path / name)
    assert e.value.code == codes.EMPTY_FILE


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    write_parquet(pa.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"pip install .pyarrow>=15"):
        rows(tmp_path / "d.parquet")


# ---- directories


def test_a_saved_split_is_read_through_all_its_files():
    found = rows(f"{TALK}:train")
    assert [line for line, _ in found] == [1, 2, 3, 4, 5]
    assert [row["messages"][0]["content"] for _, row in found] == [f"question {i}" for i in range(5)]
    assert found[2][1]["score"] == 0.5
    assert rows(TALK / "train") == found


def test_rows_that_were_picked_before_saving_keep_their_order():
    assert [row["score"] for _, row in rows(f"{TALK}:test")] == [1.0, 0.0]


def test_several_splits_are_a_question():
    with pytest.raises(DataError, match="test, train") as e:
        rows(TALK)
    assert e.value.code == codes.WHICH_SPLIT
    assert f"{TALK}:train" in e.value.fix


def test_unknown_split_names_the_nearest():
    with pytest.raises(DataError, match=r"did you mean .*:train") as e:
        rows(f"{TALK}:trian")
    assert e.value.code == codes.WHICH_SPLIT


def test_files_are_those_that_the_description_lists(tmp_path):
    shutil.copytree(TALK / "train", tmp_path / "d")
    shutil.copy(TALK / "test/data-00000-of-00001.arrow", tmp_path / "d")
    assert len(rows(tmp_path / "d")) == 5
    (tmp_path / "d/data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match="no such file") as e:
        rows(tmp_path / "d")
    assert e.value.code == codes.NOT_A_DATASET


@pytest.mark.parametrize("names", [["../secret.arrow"], ["/etc/passwd"], [3], [], None])
def test_descriptions_cannot_lead_elsewhere(tmp_path, names):
    state = {"_data_files": names and [{"filename": name} for name in names]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError) as e:
        rows(tmp_path)
    assert e.value.code == codes.NOT_A_DATASET


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\xff"])
def test_damaged_descriptions(tmp_path, text):
    (tmp_path / "state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as e:
        rows(tmp_path)
    assert e.value.code == codes.NOT_A_DATASET


def lines(path, *texts):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


def test_folder_of_shards(tmp_path):
    lines(tmp_path / "data/train-00001-of-00002.jsonl", "c")
    lines(tmp_path / "data/train-00000-of-00002.jsonl", "a", "b")
    lines(tmp_path / "data/test-00000-of-00001-0a1b.jsonl", "t")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert rows(f"{tmp_path}:train") == [(1, {"text": "a"}), (2, {"text": "b"}), (3, {"text": "c"})]
    assert rows(f"{tmp_path}:test") == [(1, {"text": "t"})]
    with pytest.raises(DataError, match="test, train"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["a.jsonl", "b.jsonl"], {""}),
        (["train.jsonl", "val.jsonl"], {"train", "val"}),
        (["my_train_set.jsonl", "dev.jsonl"], {"train", "dev"}),
        (["contest.jsonl", "trainer.jsonl"], {""}),
        (
            ["code-00000-of-00002.parquet", "code-00001-of-00002.parquet", "math-00000-of-00001.parquet"],
            {"code", "math"},
        ),
    ],
)
def test_splits_by_the_names_of_files(tmp_path, names, splits):
    for name in names:
        (tmp_path / name).write_text("{}\n")
    if splits == {""}:
        assert shards_of(tmp_path) == tuple(tmp_path / name for name in sorted(names))
        return
    for split in splits:
        assert all(split in file.name for file in shards_of(Path(f"{tmp_path}:{split}")))
    with pytest.raises(DataError) as e:
        shards_of(tmp_path)
    assert e.value.found == ", ".join(sorted(splits))


def test_folders_in_folders_are_read_in_order_and_may_name_the_split(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/deep/y.txt", ".git/x.txt", "a/_tmp/x.txt", "a/.x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert [row["text"] for _, row in rows(tmp_path)] == ["b.txt", "a/z.txt", "a/deep/y.txt"]
    (tmp_path / "a").rename(tmp_path / "test")
    with pytest.raises(DataError) as e:
        shards_of(tmp_path)
    assert e.value.found == "files without a split, test"
    assert len(shards_of(Path(f"{tmp_path}:test"))) == 2


def test_what_a_folder_has_beside_is_named_but_for_what_describes_it(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("a.txt", "b.pdf", "sub/c.docx", "README.md", "LICENSE", ".gitattributes"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / ".b.txt").write_text("x\n")
    others, hidden = unread(tmp_path).values()
    assert others == [tmp_path / "b.pdf", tmp_path / "sub" / "c.docx"]
    assert hidden == [tmp_path / ".b.txt"]
    assert unread(tmp_path / "a.txt") == {}


def test_same_split_in_two_kinds_of_file_is_a_question(tmp_path):
    lines(tmp_path / "train.jsonl", "a")
    (tmp_path / "train.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"\.jsonl, \.parquet") as e:
        rows(tmp_path)
    assert e.value.code == codes.WHICH_SPLIT


def test_empty_shards_are_passed_over_unless_all_are(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    lines(tmp_path / "b.jsonl", "x")
    assert rows(tmp_path) == [(1, {"text": "x"})]
    (tmp_path / "b.jsonl").write_bytes(b"\n")
    with pytest.raises(DataError) as e:
        rows(tmp_path)
    assert e.value.code == codes.EMPTY_FILE


def test_directory_without_data(tmp_path):
    with pytest.raises(DataError) as e:
        rows(tmp_path)
    assert e.value.code == codes.IS_DIRECTORY


def test_identity_of_a_split_is_that_of_its_files(tmp_path):
    shutil.copytree(TALK, tmp_path / "d")
    train = content_of(Path(f"{tmp_path / 'd'}:train"))
    (tmp_path / "d/test/state.json").write_text("{}")
    assert content_of(Path(f"{tmp_path / 'd'}:train")) == train
    (tmp_path / "d/train/data-00001-of-00002.arrow").write_bytes(b"x")
    assert content_of(Path(f"{tmp_path / 'd'}:train"))["sha256"] != train["sha256"]


@pytest.mark.parametrize(("write", "name"), [(pq.write_table, "d.parquet"), (write_stream, "d.arrow")])
def test_a_file_is_never_in_memory_as_a_whole(tmp_path, monkeypatch, write, name):
    monkeypatch.setattr(tables, "_BATCH_BYTES", 1 << 20)
    texts = [f"{i:06d}" * 400 for i in range(12_000)]
    write(pa.table({"text": texts}), tmp_path / name)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for _ in read_rows(tmp_path / name):
        count += 1
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == len(texts)
    assert most < sum(map(len, texts)) / 3
