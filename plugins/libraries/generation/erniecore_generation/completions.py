"""Parsing of completions into visible text, reasoning and tool calls, and incremental detokenization for streaming.

Pure text and ids: no model and no paddle. The inverse of the chat template, which writes what is parsed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from erniecore.api import Json
from erniecore.api.data import Message, ToolCall
from erniecore.api.files import parse_json
from erniecore.api.model import ChatTemplate, Tokenizer

#: Special tokens that structure a completion: they stay in its raw text so that it can be parsed.
STRUCTURE = ("<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>")
#: What the decoder puts where bytes do not (yet) form a character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """A completion, parsed.

    Attributes:
        content: the visible text.
        reasoning: the thinking part, without its tags.
        tool_calls: calls in order; text between call tags that is not a call stays in ``content``.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def parse_completion(text: str, *, thinking: bool = False) -> ParsedCompletion:
    """Parse a completion; text without any tags is returned unchanged as content.

    Args:
        text: raw text with structural tags, without the stop token.
        thinking: the prompt ended inside ``<think>``, so the text starts with the reasoning. A completion that was
            truncated before ``</think>`` is all reasoning.
    """
    reasoning = ""
    opened = re.match(r"\s*<think>", text)
    if thinking or opened:
        body = text[opened.end() :] if opened else text
        reasoning, _, text = body.partition("</think>")
        reasoning, text = reasoning.strip(), text.lstrip()
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        call = _tool_call(match[1].strip())
        if call is None:
            return match[0]
        calls.append(call)
        return ""

    rest = _CALL.sub(take, text)
    _, opened_response, response = rest.partition("<response>")
    if opened_response:
        rest = response.partition("</response>")[0].strip()
    return ParsedCompletion(rest.strip() if calls else rest, reasoning, tuple(calls))


def _tool_call(text: str) -> ToolCall | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    return ToolCall(
        value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def prompt_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Json] = (),
    thinking: bool | None = None,
) -> tuple[list[int], bool]:
    """Token ids of a conversation with the generation prompt, and whether the completion starts inside ``<think>``.

    Only the template's own text counts: a user who writes ``<think>`` changes nothing. ``thinking``: see ``ChatTemplate``.
    """
    segments = template.segments(messages, tools, add_generation_prompt=True, thinking=thinking)
    ids = [i for chunk in tokenizer.encode_segments(segments) for i in chunk]
    tail = segments[-1].text if segments and segments[-1].trusted else ""
    return ids, tail.rstrip().endswith("<think>")


def texts_of(tokenizer: Tokenizer, completions: Sequence[Sequence[int]]) -> list[str]:
    """Raw texts of completions given as ids, as they would stream: structural tags stay, other special tokens do not."""
    hidden = hidden_ids(tokenizer)
    return [tokenizer.decode([i for i in ids if i not in hidden], skip_special=False) for ids in completions]


def hidden_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens that are never shown in a completion."""
    return frozenset(i for text, i in tokenizer.special_tokens.items() if text not in STRUCTURE)


#: most ids of a character in UTF-8 that is not complete
UNFINISHED = 3


class TextStream:
    """Detokenizes a completion incrementally into chunks that are safe to show.

    A chunk never ends inside a character (UTF-8 bytes of incomplete characters are held back) nor inside what may
    become a stop string; the chunks together are the final text.

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
        # keeps what the decoder does to the first token (leading space) the same in both decodings.
        self._start = self._end = 0
        self._pending = ""

    def push(self, token: int) -> str:
        """Add one token; returns the text that is now safe to show."""
        if self.stopped or token in self._hidden:
            return ""
        self._ids.append(token)
        return self._advance(final=False)

    def close(self) -> str:
        """End the completion; returns the text that was held back."""
        if self.stopped:
            return ""
        chunk = self._advance(final=True)
        rest, self._pending = self._pending, ""
        self.text += rest
        return chunk + rest

    def _advance(self, *, final: bool) -> str:
        before, end = self._decoded(self._end), len(self._ids)
        now = self._decoded(end)
        if now.endswith(REPLACEMENT) and not final:
            # the last ids may be the beginning of a character; what lies before them is no part of it
            end -= UNFINISHED
            if end <= self._end:
                return ""
            now = self._decoded(end)
        self._pending += now[len(before) :]
        self._start, self._end = self._end, end
        return self._release()

    def _decoded(self, end: int) -> str:
        return self._tokenizer.decode(self._ids[self._start : end], skip_special=False)

    def _release(self) -> str:
        found = [at for s in self._stop if (at := self._pending.find(s)) >= 0]
        if found:
            self.stopped = True
            chunk, self._pending = self._pending[: min(found)], ""
        else:
            overlap = max((_overlap(self._pending, s) for s in self._stop), default=0)
            cut = len(self._pending) - overlap
            chunk, self._pending = self._pending[:cut], self._pending[cut:]
        self.text += chunk
        return chunk


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
