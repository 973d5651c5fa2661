"""Which learned positions of a batch belong to which answer, however the samples were packed; and the mismatched pairs
that KTO's reference point needs. numpy only.

Letters: B batch, S sequence, T = B * S, n learned positions, A answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api import IGNORE, Batch
from erniecore_preference.encoder import REJECTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a batch, in the order of their samples, the preferred one of a pair first.

    Attributes:
        where: int64 [n], learned positions in the flattened batch, ascending.
        owner: int64 [n], the answer that each belongs to, ascending.
        lengths: int64 [A], learned tokens.
        rejected: bool [A], whether an answer is the rejected (or undesirable) one.
        first: int64 [A], the first learned position of each.
    """

    where: Ints
    owner: Ints
    lengths: Ints
    rejected: NDArray[np.bool_]
    first: Ints

    def __len__(self) -> int:
        return len(self.lengths)


def answers_of(batch: Batch) -> Answers:
    """The answers by the fields ``sample`` and ``answer`` (see ``encoder.py``)."""
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    samples = np.cumsum(batch.fields["sample"].reshape(-1), dtype=np.int64)[where]
    sides = batch.fields["answer"].reshape(-1)[where].astype(np.int64)
    _, first, owner, lengths = np.unique(
        samples * 4 + sides, return_index=True, return_inverse=True, return_counts=True
    )
    return Answers(where, owner.reshape(-1), lengths, sides[first] == REJECTED, where[first])


def mismatched(batch: Batch) -> Batch | None:
    """Each rated sample's prompt with the answer of another one, in one row; None for fewer than two samples.

    The other one is the next in the order of their tokens, so the pairs depend on which samples are in the batch and on
    nothing else.
    """
    answers = answers_of(batch)
    if len(answers) < 2:
        return None
    ids, labels = batch.input_ids.reshape(-1), batch.labels.reshape(-1)
    starts = np.flatnonzero(batch.fields["sample"].reshape(-1))
    lasts = np.append(answers.where[np.flatnonzero(np.diff(answers.owner))], answers.where[-1])
    parts = [(s, f, e + 1) for s, f, e in zip(starts, answers.first, lasts, strict=True)]
    parts.sort(key=lambda p: (ids[p[0] : p[2]].tobytes(), labels[p[0] : p[2]].tobytes()))
    made_ids, made_labels = [], []
    for (start, first, _), (_, other, end) in zip(parts, [*parts[1:], parts[0]], strict=True):
        made_ids.append(np.concatenate([ids[start : first + 1], ids[other + 1 : end]]))
        made_labels.append(np.concatenate([np.full(first - start, IGNORE), labels[other:end]]))
    sizes = [len(part) for part in made_ids]
    places = [np.arange(size) for size in sizes]
    side = np.concatenate(made_labels) != IGNORE
    return Batch(
        input_ids=np.concatenate(made_ids)[None],
        labels=np.concatenate(made_labels).astype(np.int64)[None],
        position_ids=np.concatenate(places)[None],
        startend_row_indices=np.repeat(np.cumsum(sizes), sizes).astype(np.int32)[None, None, :, None],
        fields={"sample": (np.concatenate(places) == 0).astype(np.int8)[None], "answer": side.astype(np.int8)[None]},
        num_tokens=sum(sizes),
        num_samples=len(sizes),
    )
