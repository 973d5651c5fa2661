"""The one schedule that length, batch and dropout follow, as pure functions of the step. No paddle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from erniecore.api.method import Batch


@dataclass(frozen=True, slots=True)
class Stage:
    """What one step learns with.

    Attributes:
        length: tokens that attend to each other. batch: fraction of the micro-batches. dropout: of the embeddings.
    """

    length: int
    batch: float
    dropout: float


def stage(step: int, steps: int, start: Stage, end: Stage) -> Stage:
    """Linear from ``start`` at step 1 to ``end`` at step ``steps`` + 1 and after; never falling in length and batch.

    ERNIE 3.0 (arXiv:2107.02137) and ERNIE 3.0 Titan (arXiv:2112.12731) grow all of them in the first steps, with the rate.
    """
    q = 1.0 if step > steps else (step - 1) / steps

    def at(a: float, b: float) -> float:
        return b if q == 1.0 else a + q * (b - a)

    length = max(int(at(start.length, end.length)), 1)
    return Stage(length, at(start.batch, end.batch), at(start.dropout, end.dropout))


def growing_steps(own: int, train: Any, total_steps: int) -> int:
    """Steps in which everything grows: ``own``, or where that is 0 those of the warm-up of the rate.

    Args:
        train: that section of the settings. total_steps: of the run.
    """
    return own or train.warmup_steps or math.ceil(train.warmup_ratio * total_steps)


def fewer(batches: Sequence[Batch], fraction: float) -> Sequence[Batch]:
    """The first micro-batches of a step, at least one."""
    return batches[: max(math.ceil(fraction * len(batches) - 1e-9), 1)]


def shortened(batch: Batch, length: int) -> Batch:
    """``batch`` with samples cut into windows of ``length`` tokens that do not attend to each other; positions restart with each.
    No token is lost, and none moves."""
    ends = batch.startend_row_indices[:, 0, :, 0]
    columns = np.arange(ends.shape[1], dtype=np.int32)
    starts = columns - batch.position_ids.astype(np.int32)  # of the sample that a position belongs to
    last = starts + (columns - starts) // length * length + length
    real = ends > columns  # a padding column ends at itself
    bounds = np.where(real, np.minimum(ends, last), ends).astype(np.int32)
    positions = np.where(real, batch.position_ids % length, batch.position_ids)
    return replace(batch, startend_row_indices=bounds[:, None, :, None], position_ids=positions)
