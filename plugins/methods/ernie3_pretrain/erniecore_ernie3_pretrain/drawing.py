"""Which objective each sample of a batch is learned with, and its example: a pure function of the step's seed and the sample's
own tokens. So neither the number of ranks, nor micro-batches, packing or order change what is drawn, and a run that continues
draws the same. numpy only.

A batch carries its seed as the field ``draw``; one without (evaluation) is always drawn alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from erniecore_sampler.order import generator
from numpy.typing import NDArray

from erniecore.api.method import Batch
from erniecore_ernie3_pretrain.encoder import RELATION, Tokens
from erniecore_ernie3_pretrain.tasks import Draw, Example, Foreign, example_of, task_of

#: field of a batch that holds the seed of its step
SEED = "draw"
#: batches of which the pool is made, and its sentences
POOL_BATCHES, POOL = 512, 1024


class Learned(NamedTuple):
    """A sample of a batch: its tokens, the tokens that follow each, and a name that no other text has."""

    tokens: Tokens
    labels: NDArray[np.int64]
    key: bytes


def samples_of(batch: Batch) -> Iterator[Learned]:
    """The samples of a batch, in its order: stretches of real columns that begin with position 0."""
    columns = np.arange(batch.input_ids.shape[1])
    for row, ends in enumerate(batch.startend_row_indices[:, 0, :, 0]):
        (real,) = np.nonzero(ends > columns)
        if not len(real):  # a rank without a sample
            continue
        starts = real[batch.position_ids[row, real] == 0]
        for start, stop in zip(starts, [*starts[1:], int(real[-1]) + 1], strict=True):
            where = row, slice(int(start), int(stop))
            ids = batch.input_ids[where]
            fields = {name: batch.fields[name][where].astype(np.int64) for name in ("unit", "sentence", "part")}
            key = hashlib.blake2b(ids.tobytes() + fields["part"].tobytes(), digest_size=16).digest()
            yield Learned(Tokens(ids, **fields), batch.labels[where], key)


def seeded(batch: Batch, seed: int) -> Batch:
    """The batch with the seed of its step."""
    return replace(batch, fields={**batch.fields, SEED: np.full(batch.input_ids.shape, seed, np.int64)})


def examples_of(batch: Batch, draw: Draw) -> list[Example]:
    """What of the batch is learned, one example for each sample."""
    seed = int(batch.fields[SEED].flat[0]) if SEED in batch.fields else 0
    out = []
    for one in samples_of(batch):
        rng = generator(seed, f"ernie3-{one.key.hex()}")
        task = task_of(one.tokens, draw.weights, rng)
        out.append(example_of(task, one.tokens, one.labels, one.key, draw, rng))
    return out


def pool_of(batches: Iterator[Batch]) -> list[Foreign]:
    """A sentence of each of the first documents, for pairs of two documents. ``batches``: every sample, in an order that all
    ranks have; how they are batched does not matter."""
    found: dict[bytes, Foreign] = {}
    for batch in islice(batches, POOL_BATCHES):
        for one in samples_of(batch):
            if (one.tokens.part == RELATION).any() or len(found) >= POOL:
                continue
            sentence = one.tokens.ids[one.tokens.sentence == one.tokens.sentence[0]]
            found.setdefault(one.key, Foreign(one.key, sentence))
        if len(found) >= POOL:
            break
    return list(found.values())
