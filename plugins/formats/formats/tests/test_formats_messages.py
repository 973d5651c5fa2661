"""Chat rows."""

import json

import pytest
from erniecore_formats import messages as chat

from erniecore.api import RowError
from erniecore.api.data import Message, Origin, Preference, ToolCall, UnpairedPreference

HERE = Origin("f.jsonl", 1)
ASK = {"role": "user", "content": "q"}
TELL = {"role": "assistant", "content": "a"}


def parse(*items, **row):
    return chat.parse({"messages": list(items), **row}, HERE)


def test_openai_messages():
    record = parse({"role": "system", "content": "S"}, ASK, TELL)
    assert record.messages == (Message("system", "S"), Message("user", "q"), Message("assistant", "a"))


def test_sharegpt_conversation_with_tools():
    tools = [{"name": "f", "description": "d", "parameters": {}}]
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": "é"}}'},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "a"},
        ],
        "tools": json.dumps(tools),
        "system": "S",
    }
    record = chat.parse(row, HERE)
    assert record.tools == tuple(tools)
    assert record.messages == (
        Message("system", "S"),
        Message("user", "q"),
        Message("assistant", "", tool_calls=(ToolCall("f", '{"x": "é"}'),)),
        Message("tool", "3"),
        Message("assistant", "a"),
    )


def test_openai_tool_calls_with_text_or_object_arguments():
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"function": {"name": "g", "arguments": '{"y":2}'}},
        {"name": "h"},
    ]
    record = parse(
        ASK, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": {"t": 3}}, TELL
    )
    assert record.messages[1].tool_calls == (ToolCall("f", '{"x": 1}'), ToolCall("g", '{"y":2}'), ToolCall("h", "{}"))
    assert record.messages[2].content == '{"t": 3}'


def test_thinking_in_the_content_becomes_reasoning():
    record = parse(ASK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nanswer\n"})
    assert record.messages[1] == Message("assistant", "answer\n", reasoning="hm")


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thinking_in_a_field_of_its_own(key):
    assert parse(ASK, {**TELL, key: "hm"}).messages[1].reasoning == "hm"


def test_thinking_before_a_call_needs_no_answer():
    record = parse(ASK, {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [{"name": "f"}]})
    assert record.messages[1] == Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("f", "{}"),))


def test_answer_followed_by_a_call_of_its_own_is_one_turn():
    record = parse(ASK, TELL, {"role": "function_call", "content": '[{"name": "f", "arguments": {}}]'})
    assert record.messages[1:] == (Message("assistant", "a", tool_calls=(ToolCall("f", "{}"),)),)


def test_labels_of_the_row_or_of_single_messages():
    assert [m.learn for m in parse(ASK, TELL, ASK, TELL, label=[0, 1]).messages] == [True, False, True, True]
    assert [m.learn for m in parse(ASK, {**TELL, "weight": 0}, ASK, {**TELL, "label": 1}).messages][1::2] == [
        False,
        True,
    ]


@pytest.mark.parametrize("label", [True, False])
def test_label_true_or_false_rates_the_conversation(label):
    assert parse(ASK, TELL, label=label) == UnpairedPreference(
        (Message("user", "q"), Message("assistant", "a")), label, origin=HERE
    )


@pytest.mark.parametrize(
    "answer", ["good", {"role": "assistant", "content": "good"}, [{"from": "gpt", "value": "good"}]]
)
def test_preference(answer):
    record = parse(ASK, chosen=answer, rejected="bad")
    assert isinstance(record, Preference)
    assert (record.prompt, record.chosen[0].content, record.rejected[0].content) == (
        (Message("user", "q"),),
        "good",
        "bad",
    )


def test_content_in_text_parts_is_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse({"role": "user", "content": parts}, TELL).messages[0].content == "ab"


BAD = [
    ([], {}, "ERN-D036", "$.messages"),
    (["x"], {}, "ERN-D031", "$.messages[0]"),
    ([{"content": "x"}], {}, "ERN-D030", "$.messages[0].role"),
    ([{"role": "user"}], {}, "ERN-D030", "$.messages[0].content"),
    ([{"from": "human"}], {}, "ERN-D030", "$.messages[0].value"),
    ([{"role": "user", "content": 3}], {}, "ERN-D031", "$.messages[0].content"),
    ([{"role": "user", "content": " "}], {}, "ERN-D032", "$.messages[0].content"),
    ([ASK, {"role": "asistant", "content": "x"}], {}, "ERN-D034", "$.messages[1].role"),
    ([{"role": None, "content": "x"}], {}, "ERN-D034", "$.messages[0].role"),
    ([ASK, ASK, TELL], {}, "ERN-D035", "$.messages[1]"),
    ([TELL], {}, "ERN-D035", "$.messages[0]"),
    ([ASK, TELL, ASK], {}, "ERN-D035", "$.messages[2]"),
    ([ASK, TELL, {"role": "system", "content": "S"}], {}, "ERN-D035", "$.messages[2]"),
    ([ASK, {"role": "tool", "content": "x"}, TELL], {}, "ERN-D035", "$.messages[1]"),
    ([ASK, TELL, TELL], {}, "ERN-D035", "$.messages[2]"),
    ([{"role": "system", "content": "S"}, ASK, TELL], {"system": "T"}, "ERN-D036", "$.system"),
    ([ASK, {"role": "assistant", "content": ""}], {}, "ERN-D032", "$.messages[1].content"),
    ([ASK, {"role": "assistant", "content": "<think>open"}], {}, "ERN-D036", "$.messages[1].content"),
    ([ASK, {"role": "assistant", "content": "a<think>b</think>"}], {}, "ERN-D036", "$.messages[1].content"),
    ([ASK, {**TELL, "content": "<think>b</think>a", "reasoning": "c"}], {}, "ERN-D036", "$.messages[1].reasoning"),
    ([ASK, {**TELL, "tool_calls": {"name": "f"}}], {}, "ERN-D031", "$.messages[1].tool_calls"),
    ([ASK, {**TELL, "tool_calls": [{"name": ""}]}], {}, "ERN-D030", "$.messages[1].tool_calls[0].name"),
    (
        [ASK, {**TELL, "tool_calls": [{"name": "f", "arguments": "{"}]}],
        {},
        "ERN-D036",
        "$.messages[1].tool_calls[0].arguments",
    ),
    ([ASK, {"role": "function_call", "content": "f()"}], {}, "ERN-D036", "$.messages[1].content"),
    ([ASK, TELL], {"label": [1, 1]}, "ERN-D033", "$.label"),
    ([ASK, TELL], {"tools": "{"}, "ERN-D036", "$.tools"),
    ([ASK, TELL], {"tools": [{"x": 1}]}, "ERN-D036", "$.tools[0]"),
    ([ASK, TELL], {"tools": {"name": "f"}}, "ERN-D031", "$.tools"),
    ([ASK, TELL], {"images": ["a.png"]}, "ERN-D033", "$.images"),
    ([ASK, TELL], {"audios": ["a.wav"]}, "ERN-D036", "$.audios"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, TELL],
        {},
        "ERN-D030",
        "$.messages[0].content[0].image_url.url",
    ),
    (
        [{"role": "user", "content": [{"type": "audio_url", "audio_url": {}}]}, TELL],
        {},
        "ERN-D036",
        "$.messages[0].content[0].type",
    ),
    ([ASK], {"chosen": "a"}, "ERN-D030", "$.rejected"),
    ([ASK, TELL], {"chosen": "a", "rejected": "b"}, "ERN-D035", "$.messages[1]"),
    ([ASK], {"chosen": "a", "rejected": [ASK]}, "ERN-D035", "$.rejected"),
    ([ASK], {"chosen": 3, "rejected": "b"}, "ERN-D031", "$.chosen"),
    ([ASK], {"chosen": "", "rejected": "b"}, "ERN-D032", "$.chosen.content"),
]


@pytest.mark.parametrize(("items", "more", "code", "where"), BAD)
def test_bad_rows_name_their_place(items, more, code, where):
    with pytest.raises(RowError) as e:
        parse(*items, **more)
    assert (e.value.code, e.value.where) == (code, where)


def test_unknown_role_names_the_nearest():
    with pytest.raises(RowError, match="did you mean 'assistant'"):
        parse(ASK, {"role": "Asistant", "content": "x"})


def test_place_of_an_error_counts_the_rows_own_messages():
    call = {"role": "function_call", "content": '{"name": "f"}'}
    with pytest.raises(RowError) as e:
        parse(ASK, TELL, call, ASK, system="S")
    assert e.value.where == "$.messages[3]"
