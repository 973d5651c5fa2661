"""Rows with knowledge: what becomes of spans and triples, and where errors point."""

from __future__ import annotations

import pytest
from erniecore_ernie3_pretrain.rows import Passage, Triple, parse
from erniecore_ernie3_pretrain.units import units_of

from erniecore.api import RowError
from erniecore.api.method import Origin

ADA = "Ada Lovelace wrote the first program."
FACT = {"head": "Ada Lovelace", "relation": "author of", "tail": "first program"}
HERE = Origin("rows.jsonl", 3)


def test_spans_by_text_are_found_everywhere_and_by_place_once():
    row = {"passage": "An ant is an ant.", "spans": ["ant", [10, 16]]}
    assert parse(row, HERE) == Passage("An ant is an ant.", HERE, spans=((3, 6), (10, 16)))


def test_texts_are_found_as_whole_words_and_ideographs_anywhere():
    assert parse({"passage": "e5 met e57 and e5", "spans": ["e5"]}, HERE).spans == ((0, 2), (15, 17))
    assert parse({"passage": "他在北京城", "spans": ["北京"]}, HERE).spans == ((2, 4),)
    with pytest.raises(RowError, match="not in the passage"):
        parse({"passage": "Two mills.", "spans": ["mill"]}, HERE)


def test_head_and_tail_of_a_triple_are_spans():
    found = parse({"passage": ADA, "triple": FACT}, HERE)
    assert found.triple == Triple("Ada Lovelace", "author of", "first program")
    assert [ADA[begin:end] for begin, end in found.spans] == ["Ada Lovelace", "first program"]


def test_of_texts_that_overlap_the_longest_is_one():
    found = parse({"passage": "New York City", "spans": ["New York", "York City", "New York City"]}, HERE)
    assert found.spans == ((0, 13),)


@pytest.mark.parametrize(
    ("row", "where", "says"),
    [
        ({}, "$.passage", "'passage' is missing"),
        ({"passage": "  "}, "$.passage", "empty"),
        ({"passage": ADA, "span": ["Ada"]}, "$.span", "'span' is not known"),
        ({"passage": ADA, "spans": "Ada"}, "$.spans", "spans are a list"),
        ({"passage": ADA, "spans": ["Ada", "Bob"]}, "$.spans[1]", "not in the passage"),
        ({"passage": ADA, "spans": [[3, 2]]}, "$.spans[0]", "not a span"),
        ({"passage": ADA, "spans": [[0, 38]]}, "$.spans[0]", "not a span"),
        ({"passage": ADA, "spans": [[0, 5], [4, 9]]}, "$.spans[1]", "overlaps"),
        ({"passage": ADA, "triple": ["a", "b", "c"]}, "$.triple", "is an object"),
        ({"passage": ADA, "triple": {**FACT, "weight": 1}}, "$.triple.weight", "not known"),
        ({"passage": ADA, "triple": {**FACT, "tail": "engine"}}, "$.triple.tail", "tail of the triple is not in"),
        ({"passage": ADA, "triple": {"head": "Ada", "tail": "program"}}, "$.triple.relation", "is missing"),
    ],
)
def test_errors_point_at_the_field(row, where, says):
    with pytest.raises(RowError, match=says) as caught:
        parse(row, HERE)
    assert caught.value.where == where


def units(text, spans=()):
    return [unit.text for unit in units_of(text, spans)]


def test_words_take_the_whitespace_before_them_and_ideographs_stand_alone():
    assert units("One  two, 三四!") == ["One", "  two", ",", " 三", "四", "!"]
    assert units("a b \n") == ["a", " b", " \n"]


def test_a_span_is_one_unit_and_the_units_are_the_text():
    text = "So Ada Lovelace, she wrote."
    assert units(text, [(3, 15)]) == ["So", " Ada Lovelace", ",", " she", " wrote", "."]
    assert units(text, [(0, 2), (16, 27)]) == ["So", " Ada", " Lovelace", ",", " she wrote."]
    assert units("Ada", [(0, 3)]) == ["Ada"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three", ["One.", " Two!", " Three"]),
        ("It is 3.14 today. Yes.", ["It is 3.14 today.", " Yes."]),
        ("Wait... what?! No", ["Wait...", " what?!", " No"]),
        ("一句。二句？", ["一句。", "二句？"]),
        ("a title\nand a line", ["a title", "\nand a line"]),
    ],
)
def test_sentences_end_at_their_marks(text, sentences):
    found = {}
    for unit in units_of(text):
        found[unit.sentence] = found.get(unit.sentence, "") + unit.text
    assert list(found.values()) == sentences
