"""Completions in parts: the same however they are cut, the same as the whole parse, and nothing is lost."""

import json
import re
from itertools import pairwise

import pytest
from erniecore_generation.completions import STRUCTURE, parse_completion
from erniecore_openai.parsing import ChunkParser, Delta, parse
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api.data import ToolCall

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "北京"}}\n</tool_call>'
PIECES = st.one_of(
    st.sampled_from([*STRUCTURE, CALL, "<tool_call>", "<", "</", " ", "\n", "\n\n", "{", '{"name": 3}', "ab", "北"]),
    st.text("<>/thinktool_crespa \n", max_size=9),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12), thinking=st.booleans(), tools=st.booleans())
def test_chunks_together_are_the_whole(text, cuts, thinking, tools):
    parser = ChunkParser(thinking=thinking, tools=tools)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas = [parser.feed(text[a:b]) for a, b in pairwise(places)] + [parser.close()]
    whole = parse(text, thinking=thinking, tools=tools)
    assert "".join(d.content for d in deltas) == whole.content
    assert "".join(d.reasoning for d in deltas) == whole.reasoning
    assert [c for d in deltas for c in d.tool_calls] == whole.tool_calls


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12), thinking=st.booleans())
def test_calls_in_parts_are_the_same_however_they_are_cut(text, cuts, thinking):
    """And where every call is one, they are those that are told when they are complete."""
    found, once = Delta(), Delta()
    parser = ChunkParser(thinking=thinking, tools=True, partial=True)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for a, b in pairwise(places):
        found.add(parser.feed(text[a:b]))
    found.add(parser.close())
    parser = ChunkParser(thinking=thinking, tools=True, partial=True)
    once.add(parser.feed(text))
    once.add(parser.close())
    assert found == once
    whole = parse(text, thinking=thinking, tools=True)
    assert [call for call in once.tool_calls if call in whole.tool_calls] == whole.tool_calls
    assert once.reasoning == whole.reasoning


def test_arguments_come_as_they_are_written():
    parser = ChunkParser(thinking=False, tools=True, partial=True)
    assert not parser.feed('Well.\n<tool_call>\n{"name": "f", "argum').tool_calls
    assert parser.feed('ents": {"a": "}').tool_calls == [ToolCall("f", ""), ToolCall("", '{"a": "}')]
    assert parser.feed('\\"{"').tool_calls == [ToolCall("", '\\"{"')]
    assert parser.feed("}").tool_calls == [ToolCall("", "}")]
    assert not parser.feed("}\n</tool")
    assert parser.feed("_call>\nSo.").content == "\n\nSo."
    cut_off = ChunkParser(thinking=False, tools=True, partial=True)
    assert cut_off.feed('<tool_call>{"name": "f", "arguments": {"a').tool_calls[1].arguments == '{"a'
    assert not cut_off.close()


@given(text=TEXTS, thinking=st.booleans())
def test_nothing_is_lost(text, thinking):
    """But tags that were understood, and whitespace."""
    whole = parse(text, thinking=thinking, tools=True)
    called = "".join(CALL for _ in whole.tool_calls)

    def letters(value):
        return sorted(re.sub(r"\s|</?think>|</?response>", "", value))

    assert letters(whole.reasoning + whole.content + called) == letters(text)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "<response>\nso\n</response>\n",
        "plain  ",
        "  two\nlines",
        "why\n</think>\n\nso",
        "<think>\nwhy\n</think>\nso",
        "<think>why\n</think>\n<response>\nso\n</response>\n",
        "<think>why</think><response>cut off ",
        f"why</think>\n\n{CALL}\n",
        f"why</think>\n\nWait.\n{CALL}\n{CALL}\n",
        f"Wait.\n{CALL}\n<tool_call>{{broken</tool_call>",
        "</think><tool_call>never ends",
        "<tool_call>[1]</tool_call>",
    ],
)
def test_what_templates_write_is_parsed_as_in_training(text, thinking):
    expected = parse_completion(text, thinking=thinking)
    found = parse(text, thinking=thinking, tools=True)
    assert (found.content, found.reasoning, tuple(found.tool_calls)) == (
        expected.content,
        expected.reasoning,
        expected.tool_calls,
    )


def test_reasoning_and_calls_come_as_soon_as_they_are_certain():
    parser = ChunkParser(thinking=True, tools=True)
    assert parser.feed("because ").reasoning == "because"
    assert parser.feed("of it </thi").reasoning == " of it"
    assert parser.feed("nk>\n\nSo <tool").content == "So"
    assert not parser.feed('_call>\n{"name": "f", "arguments"')
    (call,) = parser.feed(': {"a": 1}}\n</tool_call>').tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})
    assert not parser.close()


def test_without_tools_their_tags_are_text():
    assert parse(CALL, thinking=False, tools=False).content == CALL
