"""Samples as the model sees them: text in spans of loss tokens and of others. Without colors, which the command adds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from erniecore.api.method import IGNORE, Sample
from erniecore.api.model import Tokenizer

#: around the text of loss tokens, where there are no colors
OPEN, CLOSE = "⟦", "⟧"


class Span(NamedTuple):
    """Adjacent tokens of the same nature. ``text`` is what the model reads (``loss``: is trained to write)."""

    text: str
    loss: bool
    ids: tuple[int, ...]


def spans(sample: Sample, tokenizer: Tokenizer) -> list[Span]:
    """The sample's tokens in order, the target of its last position included.

    A loss token is shown as its label, so the end of a turn appears as the token that the model stops with."""
    tokens = [(int(sample.input_ids[0]), False)]
    following = [*sample.input_ids[1:].tolist(), IGNORE]
    for label, read in zip(sample.labels.tolist(), following, strict=True):
        if label != IGNORE:
            tokens.append((label, True))
        elif read != IGNORE:
            tokens.append((read, False))
    out = []
    for loss, group in groupby(tokens, key=lambda t: t[1]):
        ids = tuple(token for token, _ in group)
        out.append(Span(tokenizer.decode(ids, skip_special=False), loss, ids))
    return out


def marked(found: Sequence[Span]) -> str:
    """Plain text with brackets around the loss tokens."""
    return "".join(f"{OPEN}{p.text}{CLOSE}" if p.loss else p.text for p in found)


def as_dict(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """JSON form: place, counts, spans, ids and labels."""
    return {
        "file": sample.origin.file,
        "line": sample.origin.line,
        "tokens": len(sample),
        "loss_tokens": int((sample.labels != IGNORE).sum()),
        "truncated": sample.truncated,
        "spans": [{"text": p.text, "loss": p.loss} for p in spans(sample, tokenizer)],
        "input_ids": sample.input_ids.tolist(),
        "labels": sample.labels.tolist(),
    }
