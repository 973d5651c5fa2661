"""Records to rows and back: what a format can say, it says exactly; what it cannot, it refuses."""

import json

import pytest
from erniecore_formats.plugin import alpaca, erniekit, messages, preference, query_response, text
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import RowError
from erniecore.api.data import Conversation, Document, Message, Origin, Preference, ToolCall, UnpairedPreference

HERE = Origin("f.jsonl", 1)
CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
SPECIAL = st.sampled_from(["<|end_of_sentence|>", "</s>", "<think", "{{ x }}", "<mask:1>", "\n\n", "\u2028"])
TEXTS = (
    st.lists(st.text(CHARACTERS, max_size=8) | SPECIAL, min_size=1, max_size=3)
    .map("".join)
    .filter(lambda t: t.strip() and not t.isspace())
)
STRIPPED = TEXTS.map(str.strip).filter(bool)
CALLS = st.lists(
    st.builds(ToolCall, st.text("abc_", min_size=1), st.dictionaries(st.text("xy"), TEXTS, max_size=2).map(json.dumps)),
    min_size=1,
    max_size=2,
).map(tuple)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text("ab", min_size=1)})}
    ),
    max_size=2,
).map(tuple)
MARGINS = st.none() | st.floats(-9, 9)


def said(texts, **more):
    return st.builds(Message, st.just("assistant"), texts, **more)


@st.composite
def talk(draw, texts, answers, turns=3):
    """System text, then questions and answers; the last question is open."""
    out = [Message("system", draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, turns - 1))):
        out += [Message("user", draw(texts)), draw(answers)]
    return (*out, Message("user", draw(texts)))


@st.composite
def tool_talk(draw):
    """With reasoning, labels, calls and their results."""
    rich = said(TEXTS, reasoning=st.just("") | STRIPPED, learn=st.booleans())
    out = list(draw(talk(TEXTS, rich)))
    if draw(st.booleans()):
        call = Message("assistant", draw(st.just("") | TEXTS), tool_calls=draw(CALLS), learn=draw(st.booleans()))
        out += [call, *(Message("tool", draw(TEXTS)) for _ in call.tool_calls)]
    return tuple(out), draw(rich)


def conversations(texts, **answer):
    answers = said(texts, **answer)
    return st.builds(lambda p, a: Conversation((*p, a), origin=HERE), talk(texts, answers), answers)


def rated(texts):
    return st.builds(lambda c, d: UnpairedPreference(c.messages, d, origin=HERE), conversations(texts), st.booleans())


def pairs(texts, prompt_learn=True):
    answer = said(texts)
    prompts = talk(texts, said(texts, learn=st.just(prompt_learn)))
    sides = st.tuples(answer, answer)
    return st.builds(lambda p, s, m: Preference(p, s[:1], s[1:], m, origin=HERE), prompts, sides, MARGINS)


RICH = tool_talk().map(lambda t: (*t[0], t[1]))
RICH_RECORDS = (
    st.builds(lambda m, t: Conversation(m, t, HERE), RICH, TOOLS)
    | st.builds(lambda m, d, t: UnpairedPreference(m, d, t, HERE), RICH, st.booleans(), TOOLS)
    | st.builds(
        lambda t, other, m, tools: Preference(t[0], (t[1],), other, m, tools, HERE),
        tool_talk(),
        st.tuples(said(TEXTS), st.builds(Message, st.just("user"), TEXTS), said(TEXTS)),
        MARGINS,
        TOOLS,
    )
)
SAYABLE = {
    "erniekit": (erniekit, conversations(STRIPPED, learn=st.booleans()) | pairs(STRIPPED, prompt_learn=False)),
    "alpaca": (alpaca, conversations(TEXTS) | rated(TEXTS) | pairs(TEXTS)),
    "query-response": (query_response, conversations(TEXTS) | rated(TEXTS) | pairs(TEXTS)),
    "messages": (messages, RICH_RECORDS),
    "preference": (preference, RICH_RECORDS),
    "text": (text, st.builds(Document, TEXTS, st.just(HERE))),
}


@pytest.mark.parametrize("name", SAYABLE)
def test_what_a_format_can_say_comes_back_as_it_was(name):
    plugin, records = SAYABLE[name]

    @settings(max_examples=120, deadline=None)
    @given(record=records)
    def check(record):
        row = json.loads(json.dumps(plugin.ernie_write_record(config=plugin.Config(), record=record)))
        assert plugin.ernie_match_row(row=row)
        assert plugin.ernie_parse_row(config=plugin.Config(), row=row, origin=HERE) == record

    check()


ASK, TELL = Message("user", "q"), Message("assistant", "a")
CALL = (ASK, Message("assistant", "", tool_calls=(ToolCall("f", "{}"),)), Message("tool", "3"), TELL)
PLAIN = (alpaca, erniekit, query_response)


@pytest.mark.parametrize(
    ("record", "plugins"),
    [
        (Conversation(CALL), (*PLAIN, text)),
        (Conversation((ASK, TELL), tools=({"name": "f"},)), (*PLAIN, text)),
        (UnpairedPreference((ASK, TELL), True), (erniekit, text)),
        (Preference((ASK,), (TELL, ASK, TELL), (TELL,)), (alpaca, query_response, text)),
        (Preference((ASK,), CALL[1:], (TELL,)), (*PLAIN, text)),
        (Document("a"), (*PLAIN, messages, preference)),
    ],
)
def test_what_a_format_cannot_say_is_refused(record, plugins):
    for plugin in plugins:
        with pytest.raises(RowError) as e:
            plugin.ernie_write_record(config=plugin.Config(), record=record)
        assert e.value.code == "ERN-D065"
