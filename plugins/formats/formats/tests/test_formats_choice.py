"""Which format a row has, as the plugins say it and as ``auto`` decides."""

import os
from pathlib import Path

import pytest
from erniecore_formats import checks
from erniecore_formats.plugin import alpaca, erniekit, messages, preference, query_response, text

from erniecore import codes, registry
from erniecore.api import DataError, RowError
from erniecore.api.data import Origin
from erniecore.config.core import Source
from erniecore.data.encode import encode
from erniecore.data.parsing import choose, detect, installed_formats
from erniecore.data.sources import resolve

FORMATS = {p.name: p for p in (alpaca, erniekit, messages, preference, query_response, text)}
ROWS = [
    ({"src": ["a"], "tgt": ["b"]}, "erniekit"),
    ({"src": ["a"], "response": ["b", "c"], "sort": [1, 0]}, "erniekit"),
    ({"instruction": "a", "output": "b"}, "alpaca"),
    ({"instruction": "a", "chosen": "b", "rejected": "c"}, "alpaca"),
    ({"question": "a", "chosen": "b", "rejected": "c"}, "alpaca"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ({"conversations": [], "tools": ""}, "messages"),
    ({"text": "a"}, "text"),
    ({"instruction": "a", "output": "b", "text": "a b"}, "alpaca"),
    ({"query": "a", "response": "b"}, "query-response"),
    ({"query": "a", "response": "b", "rejected_response": "c"}, "query-response"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference"),
    ({"prompt": "a", "chosen": [], "rejected": [], "messages": []}, "preference"),
    ({"chosen": [], "rejected": []}, "preference"),
    ({"prompt": "a", "completion": "b", "label": True}, "preference"),
    ({"messages": [], "chosen": {}, "rejected": {}}, "messages"),
]


@pytest.mark.parametrize(("row", "name"), ROWS)
def test_each_row_fits_one_format(row, name):
    assert [n for n, p in FORMATS.items() if p.ernie_match_row(row=row)] == [name]


def test_formats_are_installed_under_their_names():
    assert set(FORMATS) <= set(installed_formats())
    assert registry.load("format", "auto").name == "auto"


def test_codes_are_those_of_the_core():
    named = {v for k, v in vars(checks).items() if k.isupper() and isinstance(v, str)}
    assert named <= set(codes.MEANINGS)


def test_choice_ignores_rows_that_fit_nothing():
    assert choose([{"x": 1}, {"instruction": "a", "output": "b"}], FORMATS, "f") == "alpaca"


def test_mixed_rows_are_ambiguous():
    rows = [{"src": "a", "tgt": "b"}, {"instruction": "a", "output": "b"}]
    with pytest.raises(DataError, match=r"alpaca \(1 of 2\), erniekit \(1 of 2\)") as e:
        choose(rows, FORMATS, "f")
    assert e.value.code == codes.AMBIGUOUS_FORMAT


def test_row_with_two_shapes_is_ambiguous():
    with pytest.raises(DataError, match="alpaca"):
        choose([{"src": "a", "tgt": "b", "instruction": "a", "output": "b"}], FORMATS, "f")


def test_no_format_fits_names_all_and_the_nearest_field():
    with pytest.raises(DataError, match="is 'mesages' meant to be 'messages'") as e:
        choose([{"mesages": []}], FORMATS, "f")
    assert e.value.code == codes.NO_FORMAT
    assert all(name in e.value.expected for name in FORMATS)


def test_detection_reads_past_broken_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x":\n{"instruction": "a", "output": "b"}\n')
    assert detect(tmp_path / "a.jsonl", FORMATS) == "alpaca"


def test_auto_parses_single_rows():
    auto = registry.load("format", "auto")
    record = auto.ernie_parse_row(row={"src": "q", "tgt": "a"}, origin=Origin("f", 1))
    assert record.messages[0].content == "q"
    assert auto.ernie_match_row(row={"src": "q", "tgt": "a"})
    with pytest.raises(RowError) as e:
        auto.ernie_parse_row(row={"x": 1}, origin=Origin("f", 1))
    assert e.value.code == codes.NO_FORMAT


def test_unnamed_formats_are_decided_file_by_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    (tmp_path / "b.jsonl").write_text('{"src": "a", "tgt": "b"}\n')
    sources = resolve([Source(path=str(tmp_path / n)) for n in ("a.jsonl", "b.jsonl")])
    _, statistics = encode(sources, None)
    assert [count.format for count in statistics.files.values()] == ["alpaca", "erniekit"]


REAL = os.environ.get("ERNIE_REAL_DATA", "")


@pytest.mark.real_data
@pytest.mark.skipif(not REAL, reason="$ERNIE_REAL_DATA names no folder")
@pytest.mark.parametrize(
    ("file", "name", "rows", "kept"),
    [
        ("alpaca_en_demo.json", "alpaca", 999, 999),
        ("glaive_toolcall_en_demo.json", "messages", 300, 300),
        ("dpo_en_demo.json", "messages", 300, 300),
        ("kto_en_demo.json", "messages", 300, 300),
        ("identity.json", "alpaca", 91, 91),
        ("mllm_demo.json", "messages", 6, 6),
        ("wiki_demo.txt", "text", 30, 30),
    ],
)
def test_every_row_of_real_files_is_accounted_for(file, name, rows, kept):
    _, statistics = encode(resolve([Source(path=str(Path(REAL) / file))]), None)
    (count,) = statistics.files.values()
    assert (count.format, count.rows, count.kept, count.dropped) == (name, rows, kept, rows - kept)
