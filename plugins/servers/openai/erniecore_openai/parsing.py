"""A completion in parts, while it comes: content, reasoning and tool calls.

The incremental form of ``parse_completion`` of ``erniecore_generation.completions``, and for what the chat template writes
the same. The parts are the same however the text is cut into chunks. Nothing is lost where a model does not keep to the
form: a call that is none, or that does not end, is content with its tags, and so is text around ``<response>``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from erniecore_generation.completions import parse_completion

from erniecore.api.data import ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CONTENT_TAGS = ("<response>", "</response>")
#: of a call, up to the object of its arguments
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)
_TAIL = re.compile(r"\s*\}\s*</tool_call>")


@dataclass(slots=True)
class Delta:
    """What a chunk adds. A tool call without a name goes on with the arguments of the one before."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def add(self, other: Delta) -> None:
        """Put another one behind this one."""
        self.content += other.content
        self.reasoning += other.reasoning
        for call in other.tool_calls:
            if call.name or not self.tool_calls:
                self.tool_calls.append(call)
            else:
                self.tool_calls[-1] = replace(
                    self.tool_calls[-1], arguments=self.tool_calls[-1].arguments + call.arguments
                )


class ChunkParser:
    """Parses a completion chunk by chunk.

    Args:
        thinking: the prompt ended inside ``<think>``, so the text begins with reasoning.
        tools: whether calls are looked for; else their tags are content.
        verbatim: the answer was asked for in a form of its own, and is content as it is.
        partial: calls are told from their name on, as they come; one that turns out to be none, or that does not end, stays
            what it is by then. Else they are told when they are complete.
    """

    def __init__(self, *, thinking: bool, tools: bool, verbatim: bool = False, partial: bool = False) -> None:
        self.section: Literal["start", "reasoning", "content", "call", "arguments", "tail"] = "start"
        self._partial, self._scan = partial, _ObjectEnd()
        self._verbatim = verbatim
        self._thinking = thinking
        self._tags = (*(() if verbatim else _CONTENT_TAGS), *((_OPEN,) if tools else ()))
        self._pending = ""  # may begin a tag
        self._space = ""  # whitespace that is only shown when something follows
        self._fresh = True  # nothing of the section is out yet, and its leading whitespace is not to be
        self._shown = False  # there is content
        self._tagged = False  # a tag stood in the content, so whitespace at the end belongs to the form
        self._call = ""
        if verbatim and not thinking:
            self._begin_content(fresh=False)

    @property
    def reasons(self) -> bool:
        """Whether the next text is reasoning, as far as one can tell."""
        return self.section == "reasoning" or (self.section == "start" and self._thinking)

    def feed(self, chunk: str) -> Delta:
        """What is certain after ``chunk``."""
        delta = Delta()
        self._pending += chunk
        while self._step(delta):
            pass
        return delta

    def close(self) -> Delta:
        """The rest: the completion has ended."""
        delta = Delta()
        if self.section == "start":
            self._begin()
            while self._step(delta):
                pass
        rest, self._pending = self._pending, ""
        if self.section == "call":
            self.section = "content"
            rest = _OPEN + self._call + rest
            self._call = ""
        if self.section == "tail":
            rest = ""  # of a call that was cut off behind its arguments
        self._show(rest, delta)
        if self.section == "content" and not self._tagged:
            delta.content += self._space
        self._space = ""
        return delta

    def _step(self, delta: Delta) -> bool:
        """Take what is certain of the pending text; whether there may be more."""
        steps = {
            "start": self._start, "reasoning": self._reason, "content": self._say, "call": self._collect,
            "arguments": self._argue, "tail": self._end_call,
        }  # fmt: skip
        return steps[self.section](delta)

    def _start(self, delta: Delta) -> bool:
        text = self._pending.lstrip()
        if text.startswith("<think>"):
            self.section, self._pending = "reasoning", text.removeprefix("<think>")
            return True
        if not "<think>".startswith(text):
            self._begin()
            return True
        return False

    def _begin(self) -> None:
        """No tag opens the reasoning."""
        if self._thinking:
            self.section = "reasoning"
        else:
            self._begin_content(fresh=False)

    def _begin_content(self, *, fresh: bool) -> None:
        self.section, self._fresh, self._space = "content", fresh, ""

    def _reason(self, delta: Delta) -> bool:
        before, tag, after = self._pending.partition("</think>")
        if tag:
            self._show(before, delta)
            self._pending = after
            self._begin_content(fresh=not self._verbatim)
            return True
        self._keep_end(("</think>",), delta)
        return False

    def _say(self, delta: Delta) -> bool:
        if self._verbatim and self._shown:
            self._tags = ()
        found = [(at, tag) for tag in self._tags if (at := self._pending.find(tag)) >= 0]
        if not found:
            self._keep_end(self._tags, delta)
            return False
        at, tag = min(found)
        self._show(self._pending[:at], delta)
        self._pending = self._pending[at + len(tag) :]
        if tag == _OPEN:
            self.section = "call"
        else:
            self._tag()
        return True

    def _tag(self) -> None:
        """A tag of the form is here: whitespace before the first text belongs to it."""
        self._tagged = True
        if not self._shown:
            self._space, self._fresh = "", True

    def _collect(self, delta: Delta) -> bool:
        inside, tag, after = (self._call + self._pending).partition(_CLOSE)
        head = _HEAD.match(inside) if self._partial else None
        if head is not None:
            delta.tool_calls.append(ToolCall(_name(head[1]), ""))
            whole = self._call + self._pending
            self.section, self._call, self._pending = "arguments", "", whole[head.end() :]
            self._scan = _ObjectEnd()
            return True
        if not tag:
            self._call, self._pending = inside, ""
            return False
        self.section, self._call, self._pending = "content", "", after
        whole = _OPEN + inside + _CLOSE
        calls = parse_completion(whole).tool_calls
        if calls and calls[0].name:
            head = _HEAD.match(inside)
            own = calls[0] if head is None else replace(calls[0], arguments=inside[head.end() :].rstrip()[:-1].rstrip())
            delta.tool_calls.append(own)
            self._tag()
        else:
            self._show(whole, delta)
        return True

    def _argue(self, delta: Delta) -> bool:
        """The arguments of a call, to the end of their object."""
        size = self._scan.feed(self._pending)
        if size:
            delta.tool_calls.append(ToolCall("", self._pending[:size]))
        self._pending = self._pending[size:]
        if not self._scan.ended:
            return False
        self.section = "tail"
        return True

    def _end_call(self, delta: Delta) -> bool:
        """What closes a call; anything else between is content."""
        found = _TAIL.match(self._pending)
        if found is not None:
            self._pending = self._pending[found.end() :]
        elif _may_be_tail(self._pending):
            return False
        self.section = "content"
        self._tag()
        return True

    def _keep_end(self, tags: tuple[str, ...], delta: Delta) -> None:
        """Show the pending text but for an end that may begin a tag."""
        text = self._pending
        longest = min(len(text), max(map(len, tags), default=1) - 1)
        kept = next((n for n in range(longest, 0, -1) if any(tag.startswith(text[-n:]) for tag in tags)), 0)
        self._pending = text[len(text) - kept :]
        self._show(text[: len(text) - kept], delta)

    def _show(self, text: str, delta: Delta) -> None:
        if self._fresh:
            text = text.lstrip()
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if not body:
            return
        self._fresh = False
        if self.section == "reasoning":
            delta.reasoning += body
        else:
            self._shown = True
            delta.content += body


class _ObjectEnd:
    """Looks for the end of a JSON object that comes in chunks."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self.ended = 0, False, False, False

    def feed(self, text: str) -> int:
        """How many characters of ``text`` belong to it."""
        for index, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = character == "\\", character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.ended = True
                    return index + 1
        return len(text)


def _name(text: str) -> str:
    """A JSON string; what is none as it stands there."""
    try:
        return str(json.loads(text)) or text
    except ValueError:
        return text


def _may_be_tail(text: str) -> bool:
    """Whether the end of a call may begin so."""
    bare = re.sub(r"\s+", "", text)
    return ("}" + _CLOSE).startswith(bare)


def parse(text: str, *, thinking: bool, tools: bool) -> Delta:
    """All of a completion."""
    parser = ChunkParser(thinking=thinking, tools=tools)
    delta = parser.feed(text)
    delta.add(parser.close())
    return delta
