"""Plain text, from rows and from files."""

import gzip

import pytest
from erniecore_formats.plugin import alpaca, erniekit, messages, text

from erniecore import codes
from erniecore.api import RowError
from erniecore.api.data import Document, Origin
from erniecore.config.core import Source
from erniecore.data.encode import encode
from erniecore.data.parsing import RowParser, detect
from erniecore.data.sources import resolve

HERE = Origin("f.jsonl", 1)
FORMATS = {p.name: p for p in (alpaca, erniekit, messages, text)}


def parse(row, **config):
    return RowParser(text, text.Config(**config))(row, HERE)


def test_a_text_is_a_document_as_it_stands():
    assert parse({"text": " a\n\nb ", "id": 3}) == Document(" a\n\nb ", HERE)


def test_another_field_may_hold_the_text():
    assert parse({"content": "a"}, field="content").text == "a"


def test_a_list_of_texts_is_one_document():
    assert parse({"tgt": ["a", "b\nc"]}, field="tgt").text == "a\nb\nc"
    with pytest.raises(RowError) as e:
        parse({"tgt": ["a", 3]}, field="tgt")
    assert (e.value.code, e.value.where) == ("ERN-D031", "$.tgt[1]")


@pytest.mark.parametrize(
    ("row", "code"),
    [({}, "ERN-D030"), ({"text": None}, "ERN-D031"), ({"text": " \n"}, "ERN-D032"), ({"text": []}, "ERN-D036")],
)
def test_bad_rows_name_their_place(row, code):
    with pytest.raises(RowError) as e:
        parse(row)
    assert (e.value.code, e.value.where) == (code, "$.text")


def test_alpaca_rows_that_carry_a_text_stay_alpaca_rows():
    row = {"instruction": "q", "output": "a", "text": "q a"}
    assert [n for n, p in FORMATS.items() if p.ernie_match_row(row=row)] == ["alpaca"]


# ---- files

PROSE = b"one\r\ntwo <|end_of_sentence|>\n\n \n  three\n"


def documents(path, **config):
    source = RowParser(text, text.Config(**config))
    from erniecore.data.decoding import decode_row

    return [(line, source(decode_row(raw, line), HERE).text) for line, raw in source.split(path)]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("line", [(1, "one"), (2, "two <|end_of_sentence|>"), (5, "  three")]),
        ("paragraph", [(1, "one\r\ntwo <|end_of_sentence|>"), (5, "  three")]),
        ("file", [(1, "one\r\ntwo <|end_of_sentence|>\n\n \n  three")]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_a_document_is(tmp_path, document, found, packed):
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(PROSE) if packed else PROSE)
    assert documents(path, document=document) == found


def test_text_files_need_no_format(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(PROSE)
    assert detect(path, FORMATS) == "text"
    _, statistics = encode(resolve([Source(path=str(path))]), None)
    assert statistics.as_dict()["kept"] == 3


def test_a_bad_line_costs_that_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\nthree\x00\nfour\n")
    _, statistics = encode(resolve([Source(path=str(path), format="text")]), None)
    assert [(e["line"], e["code"]) for e in statistics.errors] == [(2, codes.BAD_UTF8), (3, codes.NUL)]
    assert statistics.total("kept") == 2
