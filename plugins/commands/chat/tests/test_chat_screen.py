"""What of a reply is shown: never tags or control characters, whatever the chunks."""

import io

import pytest
from erniecore_chat.chat_screen import ReplyScreen
from erniecore_generation.completions import STRUCTURE, parse_completion
from hypothesis import given
from hypothesis import strategies as st

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def shown(*chunks, thinking=False, reasoning=True, color=False):
    stream = io.StringIO()
    screen = ReplyScreen(stream, thinking=thinking, reasoning=reasoning, color=color)
    for chunk in chunks:
        screen.feed(chunk)
    screen.close()
    return stream.getvalue()


REPLY = "\nIs it 4?\nYes.\n</think>\n\n<response>\nIt is 4.\n</response>\n"


def test_reasoning_is_dimmed_and_the_content_is_not():
    assert shown(REPLY, thinking=True, color=True) == f"{DIM}Is it 4?\nYes.{PLAIN}\nIt is 4."
    assert shown(REPLY, thinking=True) == "Is it 4?\nYes.\nIt is 4."


def test_only_the_content_is_shown_where_reasoning_is_not_wanted():
    assert shown(REPLY, thinking=True, reasoning=False) == "It is 4."
    assert shown("<think>\nhm\n</think>\n\nIt is 4.", reasoning=False) == "It is 4."


def test_a_reply_without_tags_is_shown_as_it_is():
    assert shown("  a b\n\n c ", "d \n") == "  a b\n\n c d \n"


def test_calls_are_one_line_each():
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert shown(f"Let me see.\n{call}\n{call}\n") == 'Let me see.\nadd({"a": 1})\nadd({"a": 1})'
    assert shown("<tool_call>no call") == "no call"


def test_control_characters_are_escaped_and_other_letters_are_not():
    assert shown("a\x1b[31m\x07b\u202ec\x9b") == "a\\x1b[31m\\x07b\\u202ec\\x9b"
    kept = "你好\u3000é\u0301\tx\n👩\u200d💻\xa0."
    assert shown(kept) == kept


TEXTS = st.lists(st.sampled_from([*STRUCTURE, "a", " ", "\n", "<", "</", "thi", "b c"]), max_size=8).map("".join)


@given(TEXTS, st.booleans(), st.integers(1, 5))
def test_how_a_reply_is_cut_into_chunks_changes_nothing(text, thinking, size):
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert shown(*chunks, thinking=thinking) == shown(text, thinking=thinking)
    assert not any(tag in shown(*chunks, thinking=thinking) for tag in STRUCTURE)


@pytest.mark.parametrize("text", [REPLY.strip(), "x</think>y", "r</think>  \n<response>z</response>"])
def test_what_is_shown_is_what_is_kept(text):
    parsed = parse_completion(text, thinking=True)
    assert shown(text, thinking=True) == f"{parsed.reasoning}\n{parsed.content}"
    assert shown(text, thinking=True, reasoning=False) == parsed.content
