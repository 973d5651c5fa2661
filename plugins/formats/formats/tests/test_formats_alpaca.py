"""Alpaca rows."""

import pytest
from erniecore_formats import alpaca

from erniecore.api import RowError
from erniecore.api.data import Origin, Preference

HERE = Origin("f.json", 1)


def parse(**row):
    return alpaca.parse(row, HERE)


def talk(messages):
    return [(m.role, m.content) for m in messages]


def test_input_stands_below_the_instruction():
    record = parse(instruction="Translate:", input="good day", output="bonjour")
    assert talk(record.messages) == [("user", "Translate:\ngood day"), ("assistant", "bonjour")]


@pytest.mark.parametrize("empty", ["", " ", None])
def test_empty_input_adds_nothing(empty):
    assert parse(instruction="Hi", input=empty, output="x").messages[0].content == "Hi"


def test_input_alone_is_a_question():
    assert parse(instruction="", input="Hi", output="x").messages[0].content == "Hi"


def test_history_and_system_text_come_first():
    record = parse(instruction="c", output="d", history=[["a", "b"]], system="S")
    assert talk(record.messages) == [
        ("system", "S"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
    ]
    assert all(m.learn for m in record.messages)


def test_blank_system_text_is_none():
    assert parse(instruction="c", output="d", system=" ").messages[0].role == "user"


def test_preference():
    record = parse(instruction="q", input="i", chosen="good", rejected="bad", history=[["a", "b"]])
    assert isinstance(record, Preference)
    assert talk(record.prompt) == [("user", "a"), ("assistant", "b"), ("user", "q\ni")]
    assert (record.chosen[0].content, record.rejected[0].content) == ("good", "bad")


def test_preference_with_question():
    assert parse(question="q", chosen="good", rejected="bad").prompt[0].content == "q"


BAD = [
    ({"output": "x"}, "ERN-D030", "$.instruction"),
    ({"instruction": "x"}, "ERN-D030", "$.output"),
    ({"instruction": "", "input": " ", "output": "x"}, "ERN-D032", "$.instruction"),
    ({"instruction": "q", "output": ""}, "ERN-D032", "$.output"),
    ({"instruction": "q", "output": None}, "ERN-D031", "$.output"),
    ({"instruction": ["q"], "output": "x"}, "ERN-D031", "$.instruction"),
    ({"instruction": "q", "input": 3, "output": "x"}, "ERN-D031", "$.input"),
    ({"instruction": "q", "output": "x", "history": "y"}, "ERN-D031", "$.history"),
    ({"instruction": "q", "output": "x", "history": [["y"]]}, "ERN-D033", "$.history[0]"),
    ({"instruction": "q", "output": "x", "history": [["y", " "]]}, "ERN-D032", "$.history[0][1]"),
    ({"instruction": "q", "output": "x", "history": ["y"]}, "ERN-D031", "$.history[0]"),
    ({"instruction": "q", "chosen": "x"}, "ERN-D030", "$.rejected"),
    ({"instruction": "q", "chosen": "x", "rejected": {}}, "ERN-D031", "$.rejected"),
]


@pytest.mark.parametrize(("row", "code", "where"), BAD)
def test_bad_rows_name_their_place(row, code, where):
    with pytest.raises(RowError) as e:
        alpaca.parse(row, HERE)
    assert (e.value.code, e.value.where) == (code, where)
