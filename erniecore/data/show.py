"""Samples as the model sees them: text in pieces that are learned or not. Text only; colours are the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from erniecore.types import IGNORE, Sample, Tokenizer

#: around learned text, where there are no colours
OPEN, CLOSE = "⟦", "⟧"


class Span(NamedTuple):
    """Adjacent tokens of the same nature. ``text`` is what the model reads (learned: is trained to write)."""

    text: str
    learned: bool
    ids: tuple[int, ...]


def spans(sample: Sample, tokenizer: Tokenizer) -> list[Span]:
    """The sample's tokens in order, the target of its last position included.

    A learned token is shown as its label, so the end of a turn appears as the token that the model stops with."""
    tokens = [(int(sample.input_ids[0]), False)]
    following = [*sample.input_ids[1:].tolist(), IGNORE]
    for label, read in zip(sample.labels.tolist(), following, strict=True):
        if label != IGNORE:
            tokens.append((label, True))
        elif read != IGNORE:
            tokens.append((read, False))
    out = []
    for learned, group in groupby(tokens, key=lambda t: t[1]):
        ids = tuple(token for token, _ in group)
        out.append(Span(tokenizer.decode(ids, skip_special=False), learned, ids))
    return out


def marked(pieces: Sequence[Span]) -> str:
    """Plain text with marks around what is learned."""
    return "".join(f"{OPEN}{p.text}{CLOSE}" if p.learned else p.text for p in pieces)


def as_dict(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """JSON form: place, counts, pieces, ids and labels."""
    return {
        "file": sample.origin.file,
        "line": sample.origin.line,
        "tokens": len(sample),
        "learned": int((sample.labels != IGNORE).sum()),
        "truncated": sample.truncated,
        "spans": [{"text": p.text, "learned": p.learned} for p in spans(sample, tokenizer)],
        "input_ids": sample.input_ids.tolist(),
        "labels": sample.labels.tolist(),
    }
