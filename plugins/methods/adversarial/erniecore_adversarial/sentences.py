"""Sentences of plain text, by their punctuation."""

from __future__ import annotations

import re

#: a sentence with the whitespace before it; what is left at the end has no end mark
_SENTENCE = re.compile(r"\s*[^.!?。！？…]*[.!?。！？…]+[\"'”’）)]*", re.DOTALL)


def sentences(text: str) -> list[str]:
    """The finished sentences of ``text`` with the whitespace before each; joined, they are a beginning of it."""
    found, start = [], 0
    while (match := _SENTENCE.match(text, start)) is not None:
        found.append(match.group())
        start = match.end()
    return found


def finished(text: str) -> str:
    """``text`` without its last sentence, if that has no end."""
    return "".join(sentences(text))
