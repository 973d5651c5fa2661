"""Samples to one batch of arrays: joined into rows, padded, with attention bounds in row coordinates. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from erniecore.types.samples import IGNORE, Batch, Sample

if TYPE_CHECKING:
    from erniecore.types.samples import Array


def collate(rows: Sequence[Sequence[Sample]], *, pad_id: int, length: int = 0, multiple: int = 1) -> Batch:
    """Put each inner sequence of samples into one row, one after the other.

    Args:
        rows: B rows; an empty one is all padding.
        pad_id: input id of padding positions; their label is IGNORE and their position counts on from 0.
        length: S; 0: the longest row.
        multiple: S is rounded up to a multiple of this.

    Returns:
        A batch with S >= 1. ``startend_row_indices`` holds ``end_rows`` moved by the sample's start; padding
        columns hold their own index, so that nobody sees them.

    Raises:
        ValueError: a row does not fit into ``length``, or samples of one batch differ in their extra fields.
    """
    totals = [sum(map(len, row)) for row in rows]
    longest = max(totals, default=0)
    if length and longest > length:
        raise ValueError(f"a row of {longest} tokens does not fit into {length}")
    width = max(length or longest, 1)
    width += -width % multiple
    shape = len(rows), width
    input_ids = np.full(shape, pad_id, np.int64)
    labels = np.full(shape, IGNORE, np.int64)
    position_ids = np.tile(np.arange(width, dtype=np.int64), (len(rows), 1))
    bounds = np.tile(np.arange(width, dtype=np.int32), (len(rows), 1))
    samples = [s for row in rows for s in row]
    fields = _empty_fields(samples, shape)
    for i, row in enumerate(rows):
        start = 0
        for sample in row:
            part = i, slice(start, start + len(sample))
            input_ids[part], labels[part] = sample.input_ids, sample.labels
            position_ids[part], bounds[part] = sample.position_ids, sample.end_rows + start
            for name, value in sample.fields.items():
                fields[name][part] = value
            start += len(sample)
        position_ids[i, start:] = np.arange(width - start)
    return Batch(
        input_ids=input_ids,
        labels=labels,
        position_ids=position_ids,
        startend_row_indices=bounds[:, None, :, None],
        fields=fields,
        num_tokens=sum(totals),
        num_samples=len(samples),
        origins=tuple(s.origin for s in samples),
        media=tuple(s.media for s in samples),
    )


def _empty_fields(samples: Sequence[Sample], shape: tuple[int, int]) -> dict[str, Array]:
    """Zeros for the extra fields, which all samples must have alike."""
    first = samples[0].fields if samples else {}
    for sample in samples:
        if sample.fields.keys() != first.keys():
            raise ValueError(f"samples with different fields: {sorted(first)} and {sorted(sample.fields)}")
    return {name: np.zeros((*shape, *value.shape[1:]), value.dtype) for name, value in first.items()}
