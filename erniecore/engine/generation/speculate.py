"""Guesses of the next tokens, which the model then checks in one pass (speculative decoding). Whether a guess stays is
decided in ``batching.py``; a bad guesser costs time and changes no token.

Letters: b rows, w columns of the last pass, K columns of the cache, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle

from erniecore.engine.generation.sampling import Ints, Sampling, choose
from erniecore.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from erniecore.engine.generation.cache import StaticCache


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the rows after a pass of the model.

    Attributes:
        texts: per row prompt and answer, the token just chosen included.
        ids, positions: int64 [b, w], what the pass read. last: int64 [b], the last column of it that stays.
        stream: [b, w, H], ``Features.stream`` of the pass. mask: key mask [b, K] or None. cache: with K columns.
    """

    texts: Sequence[list[int]]
    ids: Ints
    positions: Ints
    last: Ints
    stream: Any
    mask: Any
    cache: StaticCache


@dataclass(frozen=True, slots=True)
class Draw:
    """How each row will choose its next token: options, counters [b] and random streams [b]."""

    sampling: Sampling
    counts: Ints
    streams: Ints


class Guesser(Protocol):
    """Guesses tokens ahead."""

    #: layers that it adds to the cache, after the model's
    layers: int

    def guess(self, seen: Seen, draw: Draw) -> list[list[int]]:
        """Per row what may follow the token just chosen; called after every pass, for every row."""
        ...


class NoGuesses:
    """Plain decoding."""

    layers = 0

    def guess(self, seen: Seen, draw: Draw) -> list[list[int]]:
        """Nothing."""
        return [[] for _ in seen.texts]


class Lookup:
    """Guesses that a text goes on as it did after the same words before (prompt lookup): for answers that repeat."""

    layers = 0

    def guess(self, seen: Seen, draw: Draw) -> list[list[int]]:
        """See :func:`follow_up`."""
        return [follow_up(text) for text in seen.texts]


def follow_up(ids: Sequence[int], *, longest: int = 3, shortest: int = 2, most: int = 4) -> list[int]:
    """Up to ``most`` tokens that followed the latest earlier occurrence of the last ``longest`` tokens, or else of fewer,
    down to ``shortest``."""
    text = np.asarray(ids, np.int64)
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
        found = np.flatnonzero((windows == text[-n:]).all(axis=1))
        if len(found):
            start = int(found[-1]) + n
            followed: list[int] = text[start : start + most].tolist()
            return followed
    return []


class Ahead:
    """Asks the model's first layer of multi-token prediction: one token ahead, drawn with the row's own random number.

    Raises:
        UsageError: the model has no such layer.
    """

    layers = 1

    def __init__(self, model: Any) -> None:
        layers = int(model.architecture.get("num_nextn_predict_layers") or 0)
        if not (layers and hasattr(model, "look_ahead")):
            raise UsageError(
                "this model has no layers that predict ahead",
                where="speculative",
                found=f"mtp, with num_nextn_predict_layers {layers}",
                expected="a model of experts that was built with its layers of multi-token prediction",
                fix="use lookup, which needs no such layers, or off",
            )
        self.model = model

    def guess(self, seen: Seen, draw: Draw) -> list[list[int]]:
        """One token per row."""
        rows = np.arange(len(seen.ids))
        following = np.roll(seen.ids, -1, axis=1)
        following[rows, seen.last] = [text[-1] for text in seen.texts]
        hidden_BSH = self.model.look_ahead(
            seen.stream,
            paddle.to_tensor(following),
            position_ids=paddle.to_tensor(seen.positions),
            attention_mask=seen.mask,
            cache=seen.cache,
        )
        last_BH = paddle.gather_nd(hidden_BSH, paddle.to_tensor(np.stack([rows, seen.last], axis=1)))
        logits = self.model.logits(last_BH).astype("float32").numpy()
        tokens = choose(logits, draw.sampling, step=draw.counts, streams=draw.streams)
        return [[token] for token in tokens.tolist()]


#: name -> the guesser of a model
GUESSERS: dict[str, Callable[[Any], Guesser]] = {
    "off": lambda model: NoGuesses(),
    "lookup": lambda model: Lookup(),
    "mtp": Ahead,
}


def guesser_of(model: Any, name: str) -> Guesser:
    """The guesser called ``name``. Raises ``UsageError`` for an unknown one, and where the model cannot do it."""
    if name not in GUESSERS:
        raise UsageError(
            "no such way to guess ahead",
            where="speculative",
            found=name,
            expected=", ".join(GUESSERS),
            fix=did_you_mean(name, GUESSERS),
        )
    return GUESSERS[name](model)
