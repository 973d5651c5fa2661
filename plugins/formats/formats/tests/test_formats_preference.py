"""Rows for preference learning, and rows with query and response."""

import pytest
from erniecore_formats import preference, query_response

from erniecore.api import RowError
from erniecore.api.data import Conversation, Message, Origin, Preference, UnpairedPreference

HERE = Origin("f.jsonl", 1)
ASK, GOOD, BAD = (
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "g"},
    {"role": "assistant", "content": "b"},
)
TWO = (Message("assistant", "g"),), (Message("assistant", "b"),)


def parse(**row):
    return preference.parse(row, HERE)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "g", "rejected": "b"},
        {"prompt": "q", "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [ASK], "chosen": "g", "rejected": BAD},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": "q", "chosen": [ASK, GOOD], "rejected": [ASK, BAD], "messages": [ASK, GOOD]},
        {"prompt": [ASK], "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
    ],
)
def test_all_spellings_of_one_preference(row):
    assert preference.parse(row, HERE) == Preference((Message("user", "q"),), *TWO, origin=HERE)


def test_shared_part_may_hold_several_turns():
    before = [{"role": "system", "content": "S"}, ASK, GOOD, {"role": "user", "content": "r"}]
    record = parse(chosen=[*before, GOOD], rejected=[*before, BAD])
    assert [m.role for m in record.prompt] == ["system", "user", "assistant", "user"]
    assert (record.chosen, record.rejected) == TWO


def test_answer_that_both_begin_with_belongs_to_them_where_one_ends_there():
    record = parse(chosen=[ASK, GOOD], rejected=[ASK, GOOD, ASK, BAD])
    assert [m.role for m in record.prompt] == ["user"]
    assert [len(record.chosen), len(record.rejected)] == [1, 3]


@pytest.mark.parametrize(
    ("given", "margin"),
    [
        ({}, None),
        ({"margin": 2}, 2.0),
        ({"score_chosen": 8.5, "score_rejected": 8}, 0.5),
        ({"chosen_score": 1, "rejected_score": 3}, -2.0),
        ({"margin": 1, "score_chosen": 8, "score_rejected": 2}, 1.0),
    ],
)
def test_margins(given, margin):
    assert parse(prompt="q", chosen="g", rejected="b", **given).margin == margin


def test_completions_are_conversations_or_rated_ones():
    messages = (Message("system", "S"), Message("user", "q"), Message("assistant", "g"))
    assert parse(prompt="q", completion="g", system="S") == Conversation(messages, origin=HERE)
    assert parse(prompt="q", completion=[GOOD], system="S", label=False) == UnpairedPreference(
        messages, False, origin=HERE
    )


def test_tools_and_reasoning_arrive():
    tool = {"type": "function", "function": {"name": "f"}}
    record = parse(prompt="q", chosen="<think>hm</think>g", rejected="b", tools=[tool])
    assert (record.tools, record.chosen[0].reasoning) == ((tool,), "hm")


BAD_ROWS = [
    ({"chosen": "g", "rejected": "b"}, "ERN-D030", "$.prompt"),
    ({"prompt": "q", "chosen": "g"}, "ERN-D030", "$.rejected"),
    ({"prompt": "q"}, "ERN-D030", "$.chosen"),
    ({"completion": "q"}, "ERN-D030", "$.prompt"),
    ({"prompt": " ", "chosen": "g", "rejected": "b"}, "ERN-D032", "$.prompt"),
    ({"prompt": "q", "chosen": "g", "rejected": ""}, "ERN-D032", "$.rejected.content"),
    ({"prompt": 3, "chosen": "g", "rejected": "b"}, "ERN-D031", "$.prompt"),
    ({"prompt": [ASK, GOOD], "chosen": "g", "rejected": "b"}, "ERN-D035", "$.prompt[1]"),
    ({"prompt": "q", "chosen": [GOOD, ASK], "rejected": "b"}, "ERN-D035", "$.chosen"),
    ({"chosen": [ASK, GOOD], "rejected": [{**ASK, "content": "x"}, BAD]}, "ERN-D036", "$.rejected"),
    ({"chosen": [ASK, GOOD], "rejected": "b"}, "ERN-D036", "$.rejected"),
    ({"prompt": "other", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, "ERN-D036", "$.prompt"),
    ({"prompt": "q", "completion": "g", "label": 1}, "ERN-D036", "$.label"),
    ({"prompt": "q", "chosen": "g", "rejected": "b", "score_chosen": 1}, "ERN-D030", "$.score_rejected"),
    ({"prompt": "q", "chosen": "g", "rejected": "b", "audios": ["a.wav"]}, "ERN-D036", "$.audios"),
]


@pytest.mark.parametrize(("row", "code", "where"), BAD_ROWS)
def test_bad_rows_name_their_place(row, code, where):
    with pytest.raises(RowError) as e:
        preference.parse(row, HERE)
    assert (e.value.code, e.value.where) == (code, where)


# ---- query and response


def test_query_and_response_with_history_and_system_text():
    row = {"query": "c", "response": "d", "history": [["a", "b"]], "system": "S"}
    messages = query_response.parse(row, HERE).messages
    assert [(m.role, m.content) for m in messages] == [
        ("system", "S"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
    ]


def test_query_with_a_rejected_response_is_a_preference():
    record = query_response.parse({"query": "q", "response": "g", "rejected_response": "b"}, HERE)
    assert record == Preference((Message("user", "q"),), *TWO, origin=HERE)


def test_query_with_a_label_is_rated():
    assert query_response.parse({"query": "q", "response": "g", "label": False}, HERE).desirable is False


@pytest.mark.parametrize(
    ("row", "code", "where"),
    [
        ({"query": "q"}, "ERN-D030", "$.response"),
        ({"response": "q"}, "ERN-D030", "$.query"),
        ({"query": "", "response": "r"}, "ERN-D032", "$.query"),
        ({"query": "q", "response": None}, "ERN-D031", "$.response"),
        ({"query": "q", "response": "r", "images": ["x"]}, "ERN-D036", "$.images"),
        ({"query": "q", "response": "r", "history": [["a"]]}, "ERN-D033", "$.history[0]"),
        ({"query": "q", "response": "r", "rejected_response": " "}, "ERN-D032", "$.rejected_response"),
    ],
)
def test_bad_queries_name_their_place(row, code, where):
    with pytest.raises(RowError) as e:
        query_response.parse(row, HERE)
    assert (e.value.code, e.value.where) == (code, where)
