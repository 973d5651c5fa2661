"""What of a reply a person sees while it streams: its content as it is, reasoning dimmed, tool calls as one line each, and
neither special tokens nor control characters.
"""

from __future__ import annotations

import re
from typing import TextIO

from erniecore_generation.completions import STRUCTURE, parse_completion

from erniecore.api.files import printable

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TAG = re.compile("|".join(map(re.escape, STRUCTURE)))
#: what a section is by the tag before it
_SECTIONS = {"<think>": "reasoning", "<tool_call>": "call"}


class ReplyScreen:
    """Writes one reply to ``stream``, chunk by chunk.

    Args:
        thinking: the reply begins with reasoning, as its prompt has opened it.
        reasoning: show reasoning and tool calls; else only the content. color: dim them.
    """

    def __init__(self, stream: TextIO, *, thinking: bool, reasoning: bool, color: bool) -> None:
        self._stream, self._shows, self._color = stream, reasoning, color
        self._section = "reasoning" if thinking else "content"
        self._pending = ""  # may begin a tag
        self._space = ""  # stands between two texts of one section, or at its end
        self._call = ""
        self._fresh = thinking  # nothing of the section has been written
        self._written = ""  # the section of what was written last

    def feed(self, chunk: str) -> None:
        """Show what is safe to show; the rest waits for the next chunk."""
        self._pending += chunk
        while tag := _TAG.search(self._pending):
            self._text(self._pending[: tag.start()])
            self._pending = self._pending[tag.end() :]
            self._change(tag[0])
        cut = len(self._pending) - _unfinished(self._pending)
        self._text(self._pending[:cut])
        self._pending = self._pending[cut:]
        self._stream.flush()

    def close(self) -> None:
        """The reply is over."""
        self._text(self._pending)
        if self._section == "content" and not self._fresh:
            self._stream.write(printable(self._space))
        if self._call:
            self._show_call()
        self._stream.flush()

    def _change(self, tag: str) -> None:
        if self._call:
            self._show_call()
        self._section, self._space, self._fresh = _SECTIONS.get(tag, "content"), "", True

    def _text(self, text: str) -> None:
        if self._section == "call":
            self._call += text
            return
        text = self._space + text
        if self._fresh:
            text = text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._write(body, self._section)
            self._fresh = False

    def _show_call(self) -> None:
        """A call as one line; what is no call is shown as it is."""
        calls = parse_completion(f"<tool_call>{self._call}</tool_call>").tool_calls
        self._write(" ".join(f"{c.name}({c.arguments})" for c in calls) or self._call.strip(), "call")
        self._call = ""

    def _write(self, text: str, section: str) -> None:
        if section != "content" and not self._shows:
            return
        apart = "\n" if self._written not in ("", section) or (section == "call" and self._written) else ""
        shown = printable(text)
        dimmed = section != "content" and self._color
        self._stream.write(apart + (f"{_DIM}{shown}{_PLAIN}" if dimmed else shown))
        self._written = section


def _unfinished(text: str) -> int:
    """Length of the end of ``text`` that a tag may begin with."""
    longest = max(map(len, STRUCTURE)) - 1
    ends = (n for n in range(min(longest, len(text)), 0, -1) if any(tag.startswith(text[-n:]) for tag in STRUCTURE))
    return next(ends, 0)
