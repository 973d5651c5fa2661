"""From files to stores: the same with workers, every row accounted for."""

import json

import numpy as np
import pytest

from erniecore import codes
from erniecore.config.core import DataSection, Source
from erniecore.data.encode import encode
from erniecore.data.parsing import RowParser
from erniecore.data.row_statistics import RowStatistics
from erniecore.data.sources import DataSource, resolve
from erniecore.data.splits import SplitReader
from erniecore.errors import DataError, PluginBroken, PluginNotFound


def file(tmp_path, rows, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(path)


def source(toy, path, **config):
    return DataSource(path, RowParser(toy.plugin, toy.Config(**config)))


MIXED = [
    {"text": "abcd"},
    "{",
    {"text": "abc"},
    {"x": 1},
    {"text": ""},
    {"text": "abcdefgh"},
    '{"text": "\\ud800"}',
    "[1]",
]


def test_rows_become_samples_or_entries_of_the_account(toy, tmp_path):
    store, statistics = encode([source(toy, file(tmp_path, MIXED))], toy.Encoder(6))
    assert [bytes(store[i].input_ids.astype(np.uint8)) for i in range(len(store))] == [
        b"abcd",
        b"abc",
        b"abc",
        b"abcdef",
    ]
    assert store.rows.tolist() == [0, 2, 2, 5]
    assert [store[i].origin.line for i in range(4)] == [1, 3, 3, 6]
    assert dict(store.truncated) == {3: "cut"}
    report = statistics.as_dict()
    assert [report[k] for k in ("rows", "kept", "truncated", "dropped", "samples")] == [8, 2, 1, 5, 4]
    assert report["reasons"] == {
        codes.MALFORMED: 1,
        codes.MISSING_FIELD: 1,
        codes.NO_TARGETS: 1,
        codes.LONE_SURROGATE: 1,
        codes.NOT_AN_OBJECT: 1,
        "cut": 1,
    }
    assert [e["line"] for e in report["errors"]] == [2, 4, 5, 7, 8]


def test_a_record_that_the_method_does_not_take_is_dropped(toy, tmp_path):
    encoder = toy.Encoder(6)
    encoder.accepts = ()
    _, statistics = encode([source(toy, file(tmp_path, [{"text": "abc"}]))], encoder)
    assert statistics.as_dict()["reasons"] == {codes.WRONG_RECORD: 1}


@pytest.mark.multiproc
def test_workers_give_the_same_samples_and_account(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("erniecore.data.encode._CHUNK_ROWS", 7)
    rows = [MIXED[i % len(MIXED)] if i % 3 else {"text": f"row {i}"} for i in range(120)]
    sources = [source(toy, file(tmp_path, rows)), source(toy, file(tmp_path, rows[50:], "b.jsonl"))]
    (alone, statistics), (shared, merged) = encode(sources, toy.Encoder(6)), encode(sources, toy.Encoder(6), workers=2)
    for name in ("starts", "input_ids", "labels", "rows", "lines", "sources"):
        assert np.array_equal(getattr(alone, name), getattr(shared, name)), name
    assert alone.truncated == shared.truncated
    assert statistics.as_dict() == merged.as_dict()


def test_format_that_fails_is_named_with_the_row(toy, tmp_path):
    with pytest.raises(PluginBroken, match="format 'words' failed on a row: KeyError") as e:
        encode([source(toy, file(tmp_path, [{"text": "a"}, {"text": "boom"}]))], None)
    assert e.value.where.endswith("a.jsonl:2")


def test_method_that_fails_is_named_with_the_row(toy, tmp_path):
    with pytest.raises(PluginBroken, match="ZeroDivisionError") as e:
        encode([source(toy, file(tmp_path, [{"text": "bug"}]))], toy.Encoder(6))
    assert e.value.where.endswith("a.jsonl:1")


def test_file_that_breaks_off_keeps_its_rows_and_fails(toy, tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"text": "abcd"},\n{"text": "ab')
    store, statistics = encode([source(toy, str(path))], toy.Encoder(6))
    assert len(store) == 1
    assert [f.code for f in statistics.failures] == [codes.BROKEN_ARRAY]
    assert statistics.errors[0]["line"] == 2
    with pytest.raises(DataError, match="not closed"):
        statistics.check(1.0)


# ---- sources of a run


def test_sections_of_formats_reach_the_rows(toy, tmp_path):
    path = file(tmp_path, [{"body": "abc"}])
    (made,) = resolve([Source(path=path, format="words")], sections={"words": toy.Config(key="body")})
    assert made.parser({"body": "abc"}, None).text == "abc"


def test_unknown_format(tmp_path):
    with pytest.raises(PluginNotFound):
        resolve([Source(path="x.jsonl", format="nope")])


def section(train, eval=(), **values):
    splits = {"train": tuple(Source(path=p) for p in train), "eval": tuple(Source(path=p) for p in eval)}
    return DataSection(format="words", **splits, **values)


def test_splits_of_a_run(toy, tmp_path):
    train, heldout = file(tmp_path, [{"text": "abcd"}] * 5), file(tmp_path, [{"text": "xy"}], "b.jsonl")
    reader = SplitReader(section(train=[train], eval=[heldout]), {}, toy.Encoder(6))
    (split, eval_split), evaluation = reader.train(1), reader.split("eval", reader.data.eval)
    assert (len(split.dataset), eval_split, len(evaluation.dataset)) == (5, None, 1)
    assert (reader.report["train"]["rows"], reader.report["eval"]["rows"]) == (5, 1)
    assert reader.summary[0] == "train: 5 rows = 5 kept + 0 truncated + 0 dropped; 5 samples, 20 tokens (words)"


def test_held_out_fraction_keeps_the_samples_of_a_row_together(toy, tmp_path):
    train = file(tmp_path, [{"text": "abc"}] * 60)
    split, eval_split = SplitReader(section(train=[train], eval_fraction=0.3), {}, toy.Encoder(6)).train(1)
    assert len(split.dataset) + len(eval_split) == 120
    assert not set(split.dataset.rows) & set(eval_split.rows)


def test_too_many_bad_rows_stop_a_run(toy, tmp_path):
    train = file(tmp_path, [{"text": "abc"}] * 9 + [{"x": 1}])
    reader = SplitReader(section(train=[train]), {}, toy.Encoder(6))
    with pytest.raises(DataError, match=r"1 of 10 rows \(10.00%\).*a.jsonl:10") as e:
        reader.train(1)
    assert e.value.exit_code == 4
    assert reader.report["train"]["dropped"] == 1
    assert len(SplitReader(section(train=[train], max_drop=0.1), {}, toy.Encoder(6)).train(1)[0].dataset) == 18


def test_no_training_data():
    with pytest.raises(DataError, match="no training data"):
        SplitReader(DataSection(), {}, None).train(1)


def test_an_account_can_be_had_without_encoder(toy, tmp_path):
    store, statistics = encode([source(toy, file(tmp_path, MIXED))], None)
    assert len(store) == 0
    assert isinstance(statistics, RowStatistics)
    assert statistics.total("rows") == 8
