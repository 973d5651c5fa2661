"""ERNIEKit rows."""

import pytest
from erniecore_formats import erniekit

from erniecore.api import RowError
from erniecore.api.data import Conversation, Message, Origin, Preference

HERE = Origin("f.jsonl", 3)


def parse(**row):
    return erniekit.parse(row, HERE)


def talk(record):
    return [(m.role, m.content) for m in record.messages]


def test_turns_with_system_text_and_labels():
    record = parse(system="You answer briefly.", src=["2+2?", "and times 3?"], tgt=["4", "12"], label=[0, 1])
    assert record == Conversation(
        (
            Message("system", "You answer briefly."),
            Message("user", "2+2?"),
            Message("assistant", "4", learn=False),
            Message("user", "and times 3?"),
            Message("assistant", "12", learn=True),
        ),
        origin=HERE,
    )


def test_texts_may_stand_for_lists_of_one_and_are_stripped():
    assert talk(parse(src=" q\n", tgt=["\ta "])) == [("user", "q"), ("assistant", "a")]


def test_every_turn_is_learned_without_labels():
    assert all(m.learn for m in parse(src=["a", "b"], tgt=["c", "d"]).messages)


def test_is_system_takes_the_first_question_and_drops_its_answer():
    record = parse(src=["Be kind.", "hi"], tgt=["ok", "hello"], label=[1, 0], is_system=1)
    assert talk(record) == [("system", "Be kind."), ("user", "hi"), ("assistant", "hello")]
    assert not record.messages[2].learn


def test_answer_to_the_system_text_may_be_blank():
    record = parse(src=["Be kind.", "hi"], tgt=[" ", "hello"], is_system=1)
    assert talk(record) == [("system", "Be kind."), ("user", "hi"), ("assistant", "hello")]


def test_preference_takes_the_answer_with_the_larger_rank():
    record = parse(system="Polite.", src=["hi", "joke"], tgt=["hello"], response=[["no"], ["ha"]], sort=[0, 1])
    assert isinstance(record, Preference)
    assert [(m.role, m.content) for m in record.prompt] == [
        ("system", "Polite."),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "joke"),
    ]
    assert [m.content for m in record.chosen + record.rejected] == ["ha", "no"]


def test_preference_between_sessions():
    record = parse(src="q", tgt=[], response=[["a", "b", "c"], "d"], sort=[1, 0], margin=2)
    assert [(m.role, m.content) for m in record.chosen] == [("assistant", "a"), ("user", "b"), ("assistant", "c")]
    assert record.margin == 2.0


def test_preference_may_leave_out_the_answers_before():
    assert parse(src="q", response=["a", "b"], sort=[1, 0]).chosen[0].content == "a"


def test_preference_with_a_system_turn():
    record = parse(src=["S", "q"], tgt=["x"], response=["a", "b"], sort=[2, 1], is_system=1)
    assert [(m.role, m.content) for m in record.prompt] == [("system", "S"), ("user", "q")]


BAD = [
    ({"src": ["a"]}, "ERN-D030", "$.tgt"),
    ({"tgt": ["a"]}, "ERN-D030", "$.src"),
    ({"src": [], "tgt": []}, "ERN-D036", "$.src"),
    ({"src": 3, "tgt": "a"}, "ERN-D031", "$.src"),
    ({"src": ["a", 3], "tgt": ["b", "c"]}, "ERN-D031", "$.src[1]"),
    ({"src": ["a"], "tgt": [" "]}, "ERN-D032", "$.tgt[0]"),
    ({"src": ["a", "b"], "tgt": ["c"]}, "ERN-D033", "$.tgt"),
    ({"src": ["a"], "tgt": ["c"], "label": [1, 0]}, "ERN-D033", "$.label"),
    ({"src": ["a"], "tgt": ["c"], "label": [2]}, "ERN-D036", "$.label[0]"),
    ({"src": ["a"], "tgt": ["c"], "label": 1}, "ERN-D031", "$.label"),
    ({"src": ["a"], "tgt": ["c"], "system": 5}, "ERN-D031", "$.system"),
    ({"src": ["a"], "tgt": ["c"], "is_system": 1}, "ERN-D036", "$.src"),
    ({"src": ["a", "b"], "tgt": ["c", "d"], "is_system": 1, "system": "s"}, "ERN-D036", "$.system"),
    ({"src": ["a", "b"], "tgt": ["", ""], "is_system": 1}, "ERN-D032", "$.tgt[1]"),
    ({"src": ["a"], "tgt": ["c"], "is_system": "yes"}, "ERN-D036", "$.is_system"),
    ({"src": ["a"], "tgt": ["x"], "response": ["b", "c"], "sort": [1, 0]}, "ERN-D033", "$.tgt"),
    ({"src": ["a"], "response": ["b"], "sort": [1, 0]}, "ERN-D036", "$.response"),
    ({"src": ["a"], "response": ["b", ["c", "d"]], "sort": [1, 0]}, "ERN-D033", "$.response[1]"),
    ({"src": ["a"], "response": ["b", ""], "sort": [1, 0]}, "ERN-D032", "$.response[1]"),
    ({"src": ["a"], "response": ["b", "c"]}, "ERN-D030", "$.sort"),
    ({"src": ["a"], "response": ["b", "c"], "sort": [1, 1]}, "ERN-D036", "$.sort"),
    ({"src": ["a"], "response": ["b", "c"], "sort": [1]}, "ERN-D036", "$.sort"),
    ({"src": ["a"], "response": ["b", "c"], "sort": ["x", 1]}, "ERN-D031", "$.sort[0]"),
    ({"src": ["a"], "response": ["b", "c"], "sort": [1, 0], "margin": "x"}, "ERN-D031", "$.margin"),
]


@pytest.mark.parametrize(("row", "code", "where"), BAD)
def test_bad_rows_name_their_place(row, code, where):
    with pytest.raises(RowError) as e:
        erniekit.parse(row, HERE)
    assert (e.value.code, e.value.where) == (code, where)
    assert e.value.found
    assert e.value.expected


def test_misspelt_field_names_the_nearest():
    with pytest.raises(RowError, match="is 'srcs' meant to be 'src'"):
        parse(srcs=["a"], tgt=["b"])
