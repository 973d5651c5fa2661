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
    """Adjacent tokens of the same nature. ``text`` is what the model reads (``loss``: is trained to write); ``part``: that of
    the sample, where its encoder names any."""

    text: str
    loss: bool
    ids: tuple[int, ...]
    part: str = ""


def spans(sample: Sample, tokenizer: Tokenizer) -> list[Span]:
    """The sample's tokens in order, the target of its last position included.

    A loss token is shown as its label, so the end of a turn appears as the token that the model stops with."""
    parts = [name for name, count in sample.parts for _ in range(count)] or [""] * len(sample)
    tokens = [(int(sample.input_ids[0]), False, parts[0])]
    following = [*sample.input_ids[1:].tolist(), IGNORE]
    for label, read, part in zip(sample.labels.tolist(), following, parts, strict=True):
        if label != IGNORE:
            tokens.append((label, True, part))
        elif read != IGNORE:
            tokens.append((read, False, part))
    out = []
    for (loss, part), group in groupby(tokens, key=lambda t: t[1:]):
        ids = tuple(token for token, *_ in group)
        out.append(Span(tokenizer.decode(ids, skip_special=False), loss, ids, part))
    return out


def as_dict(sample: Sample, tokenizer: Tokenizer, media: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """JSON form: place, counts, ``media`` where there are any, spans, ids and labels."""
    return {
        "file": sample.origin.file,
        "line": sample.origin.line,
        **({"element": sample.origin.element} if sample.origin.element is not None else {}),
        "tokens": len(sample),
        "loss_tokens": int((sample.labels != IGNORE).sum()),
        "truncated": sample.truncated,
        **({"media": list(media)} if media else {}),
        "spans": [
            {"text": p.text, "loss": p.loss, **({"part": p.part} if p.part else {})} for p in spans(sample, tokenizer)
        ],
        "input_ids": sample.input_ids.tolist(),
        "labels": sample.labels.tolist(),
    }
