"""What is hidden as a whole: words, phrases and entities of a text, and the sentences that they are in. Pure functions of texts;
no tokens yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: characters that are words of their own: those of Chinese, Japanese kanji and Korean hanja
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
#: whitespace belongs to the word behind it, as the tokens of SentencePiece have it
_WORD = re.compile(rf"\s*(?:[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+|[^\w\s])|\s+")
_ENDS = ("。", "！", "？", "!", "?", ".", ";", "；")


_INSIDE = re.compile(rf"[^\W{_IDEOGRAPHS}]{{2}}")


class Unit(NamedTuple):
    """A part of a text. ``sentence``: which sentence it is in, from 0."""

    text: str
    sentence: int


def inside_word(text: str, at: int) -> bool:
    """Whether a word goes on over the place before character ``at``; ideographs are words of their own."""
    return 0 < at < len(text) and _INSIDE.match(text, at - 1) is not None


def units_of(text: str, spans: Sequence[tuple[int, int]] = ()) -> list[Unit]:
    """The units of a text in order; together they are the text. Spans are units as they are, what is between them is words.

    A sentence ends behind a mark that ends one, unless a digit or a Latin letter follows at once (3.14), and
    where a line does.
    """
    parts = list(_parts(text, spans))
    sentence, out = 0, []
    for i, part in enumerate(parts):
        out.append(Unit(part, sentence))
        following = parts[i + 1] if i + 1 < len(parts) else ""
        ends = part.endswith(_ENDS) and not (following[:1].isascii() and following[:1].isalnum())
        if (ends and following.strip() and not following.strip().startswith(_ENDS)) or "\n" in following[:1]:
            sentence += 1
    return out


def _parts(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[str]:
    at = 0
    for begin, end in (*spans, (len(text), len(text))):
        while begin > at and text[begin - 1].isspace() and begin < len(text):
            begin -= 1
        for found in _WORD.finditer(text, at, begin):
            yield found[0]
        if end > begin:
            yield text[begin:end]
        at = end
