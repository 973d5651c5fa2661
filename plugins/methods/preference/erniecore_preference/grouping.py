"""Which learned positions of a batch belong to which completion, however the samples were packed; and the mismatched pairs
that KTO's reference point needs. numpy only.

Letters: B batch, S sequence, T = B * S, n learned positions, A completions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from erniecore.api.method import IGNORE, Batch
from erniecore_preference.encoder import REJECTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Completions:
    """The completions of a batch, in the order of their samples, the preferred one of a pair first.

    Attributes:
        where: int64 [n], learned positions in the flattened batch, ascending.
        owner: int64 [n], the completion that each belongs to, ascending.
        lengths: int64 [A], loss tokens.
        rejected: bool [A], whether a completion is the rejected (or undesirable) one.
        first: int64 [A], the first learned position of each.
    """

    where: Ints
    owner: Ints
    lengths: Ints
    rejected: NDArray[np.bool_]
    first: Ints

    def __len__(self) -> int:
        return len(self.lengths)


def completions_of(batch: Batch) -> Completions:
    """The completions by the fields ``sample`` and ``completion`` (see ``encoder.py``)."""
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    if not len(where):  # of a rank without a sequence, which has no fields
        return Completions(where, where, where, where.astype(np.bool_), where)
    samples = np.cumsum(batch.fields["sample"].reshape(-1), dtype=np.int64)[where]
    sides = batch.fields["completion"].reshape(-1)[where].astype(np.int64)
    _, first, owner, lengths = np.unique(
        samples * 4 + sides, return_index=True, return_inverse=True, return_counts=True
    )
    return Completions(where, owner.reshape(-1), lengths, sides[first] == REJECTED, where[first])


#: key of a sample -> ids and labels of its completion
Told = dict[str, tuple[list[int], list[int]]]


def told_completions(batches: Sequence[Batch]) -> Told:
    """The completions of ``batches`` as JSON values, so that other ranks can pair their prompts with them."""
    parts = (part for batch in batches for part in _parts(batch))
    return {part.key: (part.ids[part.first + 1 :].tolist(), part.labels[part.first :].tolist()) for part in parts}


def mismatched(batches: Sequence[Batch], size: int = 0, told: Told | None = None) -> list[Batch]:
    """Each rated sample's prompt with the completion of another one, one row per batch; nothing for fewer than two different
    samples.

    The other one is the next in the order of hashes of their tokens, so the pairs depend on which samples there are and on
    nothing else: not on how they are dealt to batches, or to ranks.

    Batches with images keep their own prompts, in order, so that their images stay those of the row.

    Args:
        size: pairs per batch; 0: as many as the largest of ``batches`` has samples.
        told: completions of all ranks, these included; None: there is one rank.
    """
    told = told_completions(batches) if told is None else told
    keys = sorted(told)
    if len(keys) < 2:
        return []
    following = dict(zip(keys, [*keys[1:], keys[0]], strict=True))
    if any(batch.inputs for batch in batches):
        kept = [(batch, _parts(batch)) for batch in batches]
        return [_beside_images(batch, parts, [told[following[p.key]] for p in parts]) for batch, parts in kept if parts]
    parts = sorted((part for batch in batches for part in _parts(batch)), key=lambda part: part.key)
    size = size or max(batch.num_samples for batch in batches)
    pairs = [_crossed(part, *told[following[part.key]]) for part in parts]
    return [_one_row(pairs[start : start + size]) for start in range(0, len(pairs), size)]


class _Part(NamedTuple):
    """A sample up to its last learned position; ``first``: the first learned one. ``start``: its place in the flattened
    batch; ``media``: a hash of its images."""

    ids: Ints
    labels: Ints
    first: int
    start: int = 0
    media: bytes = b""

    @property
    def key(self) -> str:
        """What it is known by."""
        return hashlib.blake2b(self.ids.tobytes() + self.labels.tobytes() + self.media, digest_size=16).hexdigest()


def _parts(batch: Batch) -> list[_Part]:
    completions = completions_of(batch)
    if not len(completions):
        return []
    ids, labels = batch.input_ids.reshape(-1), batch.labels.reshape(-1)
    starts = np.flatnonzero(batch.fields["sample"].reshape(-1))
    lasts = np.append(completions.where[np.flatnonzero(np.diff(completions.owner))], completions.where[-1])
    bounds = zip(starts, completions.first, lasts, strict=True)
    media = batch.fields["media"].reshape(-1) if "media" in batch.fields else np.zeros(len(ids), np.int64)
    told = [media[s].tobytes() if media[s] else b"" for s in starts]
    return [
        _Part(ids[s : e + 1], labels[s : e + 1], int(f - s), int(s), m)
        for (s, f, e), m in zip(bounds, told, strict=True)
    ]


def _beside_images(batch: Batch, parts: Sequence[_Part], others: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """One row of these prompts with the completions ``others``, and the images of ``batch``. Completions are texts: they count
    on from their prompt on all axes, and are 0 in whole-number inputs [B, S]."""
    crossed = [_crossed(part, *other) for part, other in zip(parts, others, strict=True)]
    row, size = _one_row(crossed), batch.input_ids.size
    asked = [slice(part.start, part.start + part.first + 1) for part in parts]
    added = [len(ids) - part.first - 1 for part, (ids, _) in zip(parts, crossed, strict=True)]
    flat = batch.position_ids.reshape(size, -1)
    places = [
        np.concatenate([flat[s], flat[s][-1] + 1 + np.arange(more)[:, None]])
        for s, more in zip(asked, added, strict=True)
    ]
    inputs = dict(batch.inputs)
    for name, values in batch.inputs.items():
        if values.shape[:2] == batch.input_ids.shape and np.issubdtype(values.dtype, np.integer):
            per_token = values.reshape(size, *values.shape[2:])
            cut = [_zeros_behind(per_token[s], more) for s, more in zip(asked, added, strict=True)]
            inputs[name] = np.concatenate(cut)[None]
    shape = (1, row.num_tokens, *batch.position_ids.shape[2:])
    return replace(row, position_ids=np.concatenate(places).reshape(shape), inputs=inputs)


def _zeros_behind(values: Ints, count: int) -> Ints:
    return np.concatenate([values, np.zeros((count, *values.shape[1:]), values.dtype)])


def _crossed(question: _Part, ids: Sequence[int], labels: Sequence[int]) -> tuple[Ints, Ints]:
    """(ids, labels) of one sample's prompt and another one's completion."""
    joined = np.concatenate([question.ids[: question.first + 1], ids])
    return joined.astype(np.int64), np.concatenate([np.full(question.first, IGNORE), labels]).astype(np.int64)


def _one_row(pairs: Sequence[tuple[Ints, Ints]]) -> Batch:
    sizes = [len(ids) for ids, _ in pairs]
    places = np.concatenate([np.arange(size) for size in sizes])
    labels = np.concatenate([part for _, part in pairs])
    return Batch(
        input_ids=np.concatenate([ids for ids, _ in pairs])[None],
        labels=labels[None],
        position_ids=places[None],
        startend_row_indices=np.repeat(np.cumsum(sizes), sizes).astype(np.int32)[None, None, :, None],
        fields={"sample": (places == 0).astype(np.int8)[None], "completion": (labels != IGNORE).astype(np.int8)[None]},
        num_tokens=sum(sizes),
        num_samples=len(sizes),
    )
