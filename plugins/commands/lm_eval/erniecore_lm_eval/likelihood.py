"""Log-likelihoods of continuations under a model.

Every prompt is computed by itself, so a score does not depend on what else is asked for, on the batch size or on what a run
that was killed had finished: it is the same to the last bit. Requests that differ in their last token alone, as multiple
choice with one letter per answer, share one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_generation.generate import evaluating

from erniecore.api import NumericsError

#: positions per product with the head; blocks begin at multiples of it, whatever is asked for
BLOCK = 64

#: context and continuation, in token ids
Pair = tuple[tuple[int, ...], tuple[int, ...]]


def score_pairs(model: Any, pairs: Sequence[Pair]) -> Iterator[tuple[int, float, bool]]:
    """(index of the pair, sum of log-probabilities of its continuation in nats, whether greedy decoding gives it), as they are
    computed. float64 sums of softmax over the float32 logits.

    Args:
        model: a ``CausalLM``. pairs: both parts of each are not empty.

    Raises:
        NumericsError: logits that are not finite.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for index, (context, continuation) in enumerate(pairs):
        shared.setdefault((context + continuation)[:-1], []).append(index)
    for ids, members in shared.items():
        starts = {index: len(pairs[index][0]) - 1 for index in members}
        with evaluating(model):
            logprobs, best = _passed(model, ids, min(starts.values()))
        for index in members:
            start, continuation = starts[index], pairs[index][1]
            total = float(sum(logprobs(start + place, token) for place, token in enumerate(continuation)))
            yield index, total, all(best[start + place] == token for place, token in enumerate(continuation))


def _passed(model: Any, ids: tuple[int, ...], first: int) -> tuple[Any, dict[int, int]]:
    """A function (position, next token) -> log-probability, and position -> most likely next token, from ``first`` on."""
    hidden = model.features(paddle.to_tensor(np.array([ids], np.int64))).hidden
    inner: dict[int, float] = {}
    best: dict[int, int] = {}
    final = np.zeros(0)
    for begin in range(first // BLOCK * BLOCK, len(ids), BLOCK):
        logits = model.logits(hidden[:, begin : begin + BLOCK]).astype("float32").numpy()[0]
        for place, row in enumerate(logits, begin):
            if place < first:
                continue
            final = _log_softmax(row)
            best[place] = int(row.argmax())
            if place + 1 < len(ids):
                inner[place] = float(final[ids[place + 1]])
    last = len(ids) - 1
    return lambda place, token: float(final[token]) if place == last else inner[place], best


def _log_softmax(logits: Any) -> Any:
    """float64 [V]."""
    wide = logits.astype(np.float64)
    highest = wide.max()
    if not np.isfinite(highest):
        raise NumericsError("the model's logits are not finite", found=str(highest))
    return wide - (highest + np.log(np.exp(wide - highest).sum()))
