"""Drafters for speculative decoding: they propose draft tokens, which the model verifies in one pass. Acceptance is decided
in ``batching.py``; a bad drafter costs time and changes no token.

Letters: b rows, w columns of the last pass, K columns of the cache, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import UsageError, ops
from erniecore.api.command import did_you_mean
from erniecore.api.model import MultiTokenPredictor
from erniecore_generation.sampling import Ints, Sampling, choose

if TYPE_CHECKING:
    from erniecore_generation.cache import StaticCache


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """What a drafter gets after a forward pass of the model.

    Attributes:
        texts: per row the ids of prompt and completion, the token just sampled included.
        ids, positions: int64 [b, w], inputs of the pass. last: int64 [b], the last column of it that was accepted.
        residual: [b, w, H], ``Features.residual`` of the pass. mask: key mask [b, K] or None. cache: with K columns.
    """

    texts: Sequence[list[int]]
    ids: Ints
    positions: Ints
    last: Ints
    residual: Any
    mask: Any
    cache: StaticCache


@dataclass(frozen=True, slots=True)
class SamplingState:
    """How each row will sample its next token: parameters [b], counters [b] and random streams [b]."""

    samplings: Sequence[Sampling]
    counts: Ints
    streams: Ints


class Drafter(Protocol):
    """Proposes draft tokens for speculative decoding."""

    #: layers that it adds to the KV cache, after the model's
    layers: int

    def draft(self, inputs: DraftInputs, state: SamplingState) -> list[list[int]]:
        """Per row the draft tokens after the token just sampled; called after every pass, for every row."""
        ...


class NoDraft:
    """Plain decoding, without draft tokens."""

    layers = 0

    def draft(self, inputs: DraftInputs, state: SamplingState) -> list[list[int]]:
        """An empty draft for every row."""
        return [[] for _ in inputs.texts]


class NgramLookup:
    """N-gram (prompt) lookup: proposes what followed the same n-gram earlier in the text. Good for text that repeats."""

    layers = 0

    def draft(self, inputs: DraftInputs, state: SamplingState) -> list[list[int]]:
        """Per row the result of :func:`ngram_lookup`."""
        return [ngram_lookup(text) for text in inputs.texts]


def ngram_lookup(ids: Sequence[int], *, longest: int = 3, shortest: int = 2, most: int = 4) -> list[int]:
    """Up to ``most`` tokens that followed the latest earlier occurrence of the last n tokens, for n from ``longest`` down to
    ``shortest``; empty where there is none."""
    text = np.asarray(ids, np.int64)
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
        found = np.flatnonzero((windows == text[-n:]).all(axis=1))
        if len(found):
            start = int(found[-1]) + n
            followed: list[int] = text[start : start + most].tolist()
            return followed
    return []


class MtpDrafter:
    """Drafts one token with the model's first multi-token-prediction (MTP) layer, sampled with the row's own random number.

    Raises:
        UsageError: the model has no such layer.
    """

    layers = 1

    def __init__(self, model: Any) -> None:
        layers = int(model.architecture.get("num_nextn_predict_layers") or 0)
        if not (layers and isinstance(model, MultiTokenPredictor)):
            raise UsageError(
                "this model has no multi-token-prediction layers",
                where="speculative",
                found=f"mtp, with num_nextn_predict_layers {layers}",
                expected="a mixture-of-experts model that was built with its MTP layers",
                fix="use lookup, which needs no MTP layers, or off",
            )
        self.model: Any = model

    def draft(self, inputs: DraftInputs, state: SamplingState) -> list[list[int]]:
        """One draft token per row."""
        rows = np.arange(len(inputs.ids))
        following = np.roll(inputs.ids, -1, axis=1)
        following[rows, inputs.last] = [text[-1] for text in inputs.texts]
        hidden_BSH = self.model.mtp_forward(
            inputs.residual,
            ops.tensor_of(following),
            position_ids=ops.tensor_of(inputs.positions),
            attention_mask=inputs.mask,
            cache=inputs.cache,
        )
        last_BH = paddle.gather_nd(hidden_BSH, ops.tensor_of(np.stack([rows, inputs.last], axis=1)))
        logits = self.model.logits(last_BH).astype("float32").numpy()
        return [
            choose(logits[[row]], sampling, step=state.counts[[row]], streams=state.streams[[row]]).tolist()
            if np.isfinite(logits[row].max())
            else []
            for row, sampling in enumerate(state.samplings)
        ]


#: name -> makes the drafter for a model
DRAFTERS: dict[str, Callable[[Any], Drafter]] = {
    "off": lambda model: NoDraft(),
    "lookup": lambda model: NgramLookup(),
    "mtp": MtpDrafter,
}


def make_drafter(model: Any, name: str) -> Drafter:
    """The drafter called ``name``. Raises ``UsageError`` for an unknown name, and where the model lacks what it needs."""
    if name not in DRAFTERS:
        raise UsageError(
            "no such drafter",
            where="speculative",
            found=name,
            expected=", ".join(DRAFTERS),
            fix=did_you_mean(name, DRAFTERS),
        )
    return DRAFTERS[name](model)
