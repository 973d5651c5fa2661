"""How many samples an epoch takes of each source, and how they are interleaved, where it does not take all of them; the rest
of mixing is ``mixing.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from erniecore.data.order import shares

if TYPE_CHECKING:
    from erniecore.types.samples import Array


def counts(
    used: Sequence[int],
    sizes: Sequence[int],
    weight: dict[int, Fraction],
    amount: dict[int, Fraction],
    kind: str,
    epoch_samples: int,
) -> list[int]:
    """Samples of each used source in every epoch."""
    if epoch_samples or kind == "weighted":
        total = epoch_samples or sum(sizes)
        return shares([float((weight if kind == "weighted" else amount)[i]) for i in used], total)
    limits = {i: max(1, math.floor(amount[i])) for i in used}
    reach = {i: limits[i] / weight[i] for i in used}
    if kind == "interleave-under":
        draws = min(reach.values())
        return [math.floor(weight[i] * draws) for i in used]
    if kind == "interleave-over":
        draws = max(reach.values())
        return [math.ceil(weight[i] * draws) for i in used]
    raise AssertionError(f"unknown mix {kind!r}")


def evenly(counts: Sequence[int]) -> Array:
    """Indices that spread each part evenly over the whole."""
    places = np.concatenate([(np.arange(n) + 0.5) / n for n in counts])
    return np.argsort(places, kind="stable")
