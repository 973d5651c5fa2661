"""What a generated answer consists of: visible text, reasoning and tool calls; and text as it streams in.

Pure text and ids: no model and no paddle. The counterpart of the chat template, which writes what is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from erniecore.types import ChatTemplate, Json, Message, Tokenizer, ToolCall

#: Control tokens that structure an answer: they stay in its raw text so that it can be taken apart.
STRUCTURE = ("<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>")
#: What the decoder puts where bytes do not (yet) form a character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer taken apart.

    Attributes:
        content: what is meant for the reader.
        reasoning: the thinking part, without its tags.
        tool_calls: calls in order; text between call tags that is not a call stays in ``content``.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def parse_answer(text: str, *, thinking: bool = False) -> Answer:
    """Take an answer apart; text without any tags is returned as it is.

    Args:
        text: raw text with structural tags, without the stop token.
        thinking: the prompt ended inside ``<think>``, so the text starts with the reasoning. An answer that was cut
            off before ``</think>`` is all reasoning.
    """
    reasoning = ""
    opened = re.match(r"\s*<think>", text)
    if thinking or opened:
        body = text[opened.end() :] if opened else text
        reasoning, _, text = body.partition("</think>")
        reasoning, text = reasoning.strip(), text.lstrip()
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        call = _tool_call(match[1])
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _CALL.sub(take, text)
    response = re.search(r"<response>\s*(.*?)\s*(?:</response>|\Z)", rest, re.DOTALL)
    if response:
        rest = response[1]
    return Answer(rest.strip() if calls else rest, reasoning, tuple(calls))


def _tool_call(text: str) -> ToolCall | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    return ToolCall(
        value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def prompt_ids(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Json] = ()
) -> tuple[list[int], bool]:
    """Ids of a conversation up to where the model answers, and whether that is inside ``<think>``.

    Only the template's own text decides: a user who writes ``<think>`` changes nothing.
    """
    segments = template.segments(messages, tools, add_generation_prompt=True)
    ids = [i for piece in tokenizer.encode_segments(segments) for i in piece]
    tail = segments[-1].text if segments and segments[-1].trusted else ""
    return ids, tail.rstrip().endswith("<think>")


def texts_of(tokenizer: Tokenizer, answers: Sequence[Sequence[int]]) -> list[str]:
    """Raw texts of answers' ids, as they would stream: structural tags stay, other control tokens do not."""
    hidden = hidden_ids(tokenizer)
    return [tokenizer.decode([i for i in ids if i not in hidden], skip_special=False) for ids in answers]


def hidden_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Control tokens that never show in an answer."""
    return frozenset(i for text, i in tokenizer.special_tokens.items() if text not in STRUCTURE)


class TextStream:
    """Text of a growing answer in pieces that are safe to show.

    A piece never ends inside a character (UTF-8 bytes of unfinished characters wait) nor inside what may
    become a stop string; the pieces together are the final text.

    Attributes:
        text: everything released so far.
        stopped: a stop string was found; ``text`` ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.text, self.stopped = "", False
        self._tokenizer, self._stop = tokenizer, tuple(s for s in stop if s)
        self._hidden = hidden_ids(tokenizer)
        self._ids: list[int] = []
        # ids before _start are settled; those up to _end are already in _pending or text. Decoding from _start on
        # keeps what the decoder does to the first piece (leading space) the same in both decodings.
        self._start = self._end = 0
        self._pending = ""

    def push(self, token: int) -> str:
        """One more token; the text that became safe to show."""
        if self.stopped or token in self._hidden:
            return ""
        self._ids.append(token)
        return self._advance(final=False)

    def close(self) -> str:
        """The answer has ended: what was held back."""
        if self.stopped:
            return ""
        piece = self._advance(final=True)
        rest, self._pending = self._pending, ""
        self.text += rest
        return piece + rest

    def _advance(self, *, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._end], skip_special=False)
        now = self._tokenizer.decode(self._ids[self._start :], skip_special=False)
        if now.endswith(REPLACEMENT) and not final:
            return ""
        self._pending += now[len(before) :]
        self._start, self._end = self._end, len(self._ids)
        return self._release()

    def _release(self) -> str:
        found = [at for s in self._stop if (at := self._pending.find(s)) >= 0]
        if found:
            self.stopped = True
            piece, self._pending = self._pending[: min(found)], ""
        else:
            held = max((_overlap(self._pending, s) for s in self._stop), default=0)
            cut = len(self._pending) - held
            piece, self._pending = self._pending[:cut], self._pending[cut:]
        self.text += piece
        return piece


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
