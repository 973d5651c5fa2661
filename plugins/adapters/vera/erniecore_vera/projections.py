"""The random matrices A and B that all layers share, as PEFT makes them: the numbers of its generator (MT19937, a float32 of
24 bits of each draw), first A, then B, each uniform in ±sqrt(6 / columns) (Kaiming). A layer takes as many columns of A as it
has inputs, and as many rows of B as it has outputs. numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class Projections(NamedTuple):
    """``a`` float32 [r, inputs], ``b`` float32 [outputs, r], of the widest layers; ``seed``: what they were drawn with."""

    a: Array
    b: Array
    seed: int


def draw(seed: int, rank: int, shapes: Iterable[tuple[int, ...]]) -> Projections:
    """A and B for layers of these shapes [.., inputs, outputs]."""
    widths = [shape[-2:] for shape in shapes]
    inputs, outputs = max(width[0] for width in widths), max(width[1] for width in widths)
    generator = np.random.RandomState(seed)
    return Projections(_uniform(generator, (rank, inputs)), _uniform(generator, (outputs, rank)), seed)


def _uniform(generator: np.random.RandomState, shape: tuple[int, int]) -> Array:
    bits = generator.randint(0, 2**32, size=shape, dtype=np.uint32) & np.uint32(2**24 - 1)
    bound = np.float32(sqrt(3.0) * (sqrt(2.0) / sqrt(shape[1])))
    # torch computes in float64, with the width of the interval in float32
    found: Array = (bits * 2.0**-24 * float(bound + bound) - float(bound)).astype(np.float32)
    return found
