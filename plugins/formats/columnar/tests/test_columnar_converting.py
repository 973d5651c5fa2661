"""Rows of one format as rows of another: nothing is lost without a word, and files appear whole or not at all."""

import gzip
import json

import pyarrow.parquet as pq
import pytest
from erniecore_columnar import sinks
from erniecore_columnar.converting import Target, convert, losses, writer

from erniecore import codes
from erniecore.api import hookimpl
from erniecore.data.parsing import RowParser, installed_formats, load_format
from erniecore.data.reader import read_rows
from erniecore.data.row_statistics import RowStatistics
from erniecore.errors import DataError, UsageError
from erniecore.types.records import Conversation, Document, Message, Preference, ToolCall, UnpairedPreference

FORMATS = installed_formats()
TALK = {"src": ["a", "b"], "tgt": ["c", "d"], "label": [0, 1]}


@pytest.fixture
def run(tmp_path):
    def make(rows, to, name="out.jsonl", **more):
        path = tmp_path / "in.jsonl"
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        out = tmp_path / name
        statistics, written = convert([path], Target(RowParser(FORMATS[to]), out, **more))
        assert isinstance(statistics, RowStatistics)
        assert written == out.exists()
        assert not [p for p in tmp_path.iterdir() if p not in (path, out)]
        return statistics, [row for _, row in read_rows(out)] if written else None

    return make


def test_rows_keep_their_order_and_meaning(run):
    rows = [TALK, {"system": "S", "src": "x", "tgt": "y"}]
    statistics, found = run(rows, "messages")
    assert found[0]["messages"][1] == {"role": "assistant", "content": "c", "label": 0}
    assert [m["role"] for m in found[1]["messages"]] == ["system", "user", "assistant"]
    assert [statistics.total(p) for p in ("rows", "kept", "truncated", "dropped")] == [2, 2, 0, 0]


def test_what_a_row_loses_is_said_for_that_row(run):
    statistics, found = run([{"src": "x", "tgt": "y"}, TALK], "alpaca")
    assert len(found) == 2
    assert statistics.total("truncated") == 1
    assert [(entry["line"], entry["loses"]) for entry in statistics.losses] == [(2, ["labels"])]
    assert statistics.as_dict()["reasons"] == {"loses labels": 1}


def test_lossless_drops_what_would_lose(run):
    statistics, found = run([{"src": "x", "tgt": "y"}, TALK], "alpaca", lossless=True, max_drop=0.5)
    assert len(found) == 1
    assert [e["code"] for e in statistics.errors] == [codes.NOT_CONVERTED]


def test_rows_without_words_are_dropped_and_stop_it(run):
    row = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "tools": [{"name": "f"}],
    }
    statistics, found = run([row], "erniekit")
    assert found is None
    assert [(e["line"], e["code"]) for e in statistics.errors] == [(1, codes.NOT_REPRESENTABLE)]


def test_bad_rows_stop_it_unless_allowed(run):
    assert run([TALK, "{"], "messages")[1] is None
    statistics, found = run([TALK, "{"], "messages", max_drop=0.5)
    assert (len(found), statistics.total("dropped")) == (1, 1)


def test_white_space_that_the_target_strips_is_a_loss(run):
    statistics, _ = run([{"instruction": "q ", "output": "a"}], "erniekit")
    assert statistics.losses[0]["loses"] == ["white space"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_kinds_of_file_hold_the_same_rows(run, tmp_path, name):
    rows = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "label": True},
        {
            "messages": [
                {"role": "user", "content": "é<|end_of_sentence|>"},
                {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": None, "y": [1]}}]},
                {"role": "tool", "content": "3"},
                {"role": "assistant", "content": "a", "label": 0},
            ],
            "tools": [{"name": "f", "parameters": {"default": None, "anyOf": [1, "x"]}}],
        },
    ]
    statistics, found = run(rows, "messages", name=name)
    assert statistics.total("kept") == 2
    back = [FORMATS["messages"].ernie_parse_row(config=FORMATS["messages"].Config(), row=r, origin=None) for r in found]
    given = [FORMATS["messages"].ernie_parse_row(config=FORMATS["messages"].Config(), row=r, origin=None) for r in rows]
    assert back == given
    if name.endswith(".gz"):
        assert gzip.decompress((tmp_path / name).read_bytes()).count(b"\n") == 2


def test_tables_take_rows_whose_fields_appear_late(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_BATCH", 2)
    rows = [{"instruction": "q", "output": str(i)} for i in range(5)]
    rows.insert(3, {"instruction": "q", "output": "a", "history": [["x", "y"]], "system": "S"})
    _, found = run(rows, "alpaca", name="out.parquet")
    assert found == rows
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 6


def test_fields_of_two_types_do_not_fit_a_table(run, monkeypatch):
    class Twice(type(FORMATS["text"])):
        @hookimpl
        def ernie_write_record(self, record):
            return {"text": record.text, "n": record.text}

    monkeypatch.setitem(FORMATS, "text", Twice())
    monkeypatch.setattr(sinks.json, "loads", _Uneven(json.loads))
    with pytest.raises(DataError) as e:
        run([{"text": "a"}, {"text": "b"}], "text", name="out.parquet")
    assert e.value.code == codes.NOT_CONVERTED


class _Uneven:
    def __init__(self, loads):
        self.loads = loads

    def __call__(self, text):
        row = self.loads(text)
        return {**row, "n": 1} if row.get("text") == "b" else row


def test_existing_files_need_force(run, tmp_path):
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(UsageError, match="--force"):
        run([TALK], "messages")
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert len(run([TALK], "messages", force=True)[1]) == 1


def test_failure_leaves_the_old_file(run, tmp_path):
    (tmp_path / "out.jsonl").write_text("old")
    with pytest.raises(AssertionError):  # not written, though it exists
        run(["{"], "messages", force=True)
    assert (tmp_path / "out.jsonl").read_text() == "old"


@pytest.mark.parametrize("name", ["out.csv", "out", ".jsonl", "no/out.jsonl", "in.jsonl"])
def test_places_that_cannot_be_written(run, name):
    with pytest.raises(UsageError):
        run([TALK], "messages", name=name)


def test_formats_that_only_read_are_refused():
    with pytest.raises(UsageError, match="erniekit"):
        writer("auto", load_format("auto"))


Q, A = Message("user", "q"), Message("assistant", "a")


@pytest.mark.parametrize(
    ("one", "other", "lost"),
    [
        (Conversation((Q, A)), Conversation((Q, A)), []),
        (Conversation((Q, A)), Conversation((Q,)), ["turns"]),
        (Conversation((Q, A)), Conversation((Q, Message("assistant", "b"))), ["text"]),
        (Conversation((Q, Message("assistant", "a", "hm"))), Conversation((Q, A)), ["reasoning"]),
        (Conversation((Q, Message("assistant", "a", "", (ToolCall("f", ""),)))), Conversation((Q, A)), ["calls"]),
        (Conversation((Q, A), ({"name": "f"},)), Conversation((Q, A)), ["tools"]),
        (UnpairedPreference((Q, A), True), UnpairedPreference((Q, A), False), ["rating"]),
        (UnpairedPreference((Q, A), True), Conversation((Q, A)), ["its kind, unpaired preference"]),
        (Preference((Q,), (A,), (A,), 1.0), Preference((Q,), (A,), (A,)), ["margin"]),
        (Preference((Q,), (A,), (Q,)), Preference((Q,), (A,), (A,)), ["turns"]),
        (Document("a"), Document("b"), ["text"]),
    ],
)
def test_names_of_losses(one, other, lost):
    assert losses(one, other) == lost


def test_labels_in_a_prompt_mean_nothing():
    silent = Message("assistant", "a", learn=False)
    assert losses(Preference((Q, A, Q), (A,), (A,)), Preference((Q, silent, Q), (A,), (A,))) == []
