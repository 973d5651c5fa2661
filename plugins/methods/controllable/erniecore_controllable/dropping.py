"""Attributes are dropped from samples that are encoded already: nobody attends to their tokens, positions do not count them, and
the token before the text predicts its first one. The model computes for the rest what it computes of a prompt without them.

Which ones is a function of (seed of the step, tokens of the sample) alone: the same in whichever row, micro-batch or rank the
sample is, and again in a run that continues. numpy only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from erniecore.api.method import IGNORE, Batch
from erniecore_controllable.prompt import GENRE, LENGTH


def dropped(batch: Batch, seed: int, plain: float, dropout: float) -> Batch:
    """``batch`` with the attributes that are learned with in this step.

    Args:
        seed: of the step. plain: probability of none at all. dropout: of each, else.
    """
    ends = batch.startend_row_indices.copy()
    labels, positions = batch.labels.copy(), batch.position_ids.copy()
    attribute, gone = batch.fields["attribute"], 0
    for row, start, stop in samples(ends[:, 0, :, 0]):
        own = attribute[row, start:stop]
        keep = kept(own, batch.input_ids[row, start:stop], seed, plain, dropout)
        gone += int((~keep).sum())
        columns = start + np.flatnonzero(~keep)
        ends[row, 0, columns, 0] = columns  # as padding: it ends at itself
        positions[row, start:stop] = np.maximum(np.cumsum(keep) - 1, 0)
        first = int(np.flatnonzero(own)[-1]) + 1 if own.any() else 1  # where the text begins
        prompt = labels[row, start : start + first]
        target = prompt[-1]
        prompt[:] = IGNORE
        prompt[np.flatnonzero(keep[:first])[-1]] = target
    return replace(
        batch, startend_row_indices=ends, labels=labels, position_ids=positions, num_tokens=batch.num_tokens - gone
    )


def kept(
    attribute: NDArray[np.int8], ids: NDArray[np.int64], seed: int, plain: float, dropout: float
) -> NDArray[np.bool_]:
    """bool [n]: the tokens of a sample that stay. Of a genre that stays, from none to all soft tokens do, with equal chances."""
    digest = hashlib.blake2b(np.int64(seed).tobytes() + np.ascontiguousarray(ids).tobytes(), digest_size=8).digest()
    chance = np.random.default_rng(int.from_bytes(digest, "little")).random(LENGTH + 2)
    keep: NDArray[np.bool_] = attribute == 0
    if chance[0] < plain:
        return keep
    for one in range(GENRE, LENGTH + 1):
        if chance[one] >= dropout:
            keep |= attribute == one
    (soft,) = np.nonzero(attribute == GENRE)
    keep[soft[int(chance[-1] * (len(soft) + 1)) :]] = False
    return keep


def samples(ends: NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """(row, start, stop) of every sample of a batch [B, S] in which nothing has been dropped; padding is none."""
    for row, own in enumerate(ends):
        start = 0
        while start < len(own) and own[start] > start:
            yield row, start, int(own[start])
            start = int(own[start])
