"""Packs completions into samples and micro-batches, and converts micro-batches to arrays for checkpoints; numpy only.

Completions of one prompt share a sample, [prompt | completion 1 | completion 2 | …], if that is less work. As in
``erniecore_preference.encoder``, ``prompt`` excludes its last token, which each completion repeats because it predicts the
completion's first token. All completions start at the same position and do not attend to each other.

Per-token fields:

* ``sample``: 1 at the first token.
* ``completion``: the number of the completion in its sample, from 1; 0 in the prompt.
* ``learn``: 1 in completions that are part of the policy gradient.
* ``side``: CHOSEN or REJECTED in completions of a pair, else 0. The k-th CHOSEN and the k-th REJECTED completion of a
  micro-batch are a pair.
* ``advantage``; ``sampled`` and ``old``: log-probability at the rollout, from the sampler and from the training code;
  ``reference``: log-probability under the reference. At the position that predicts the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api.corpus import collate
from erniecore.api.data import MediaReader
from erniecore.api.method import IGNORE, Batch, Origin, Sample

if TYPE_CHECKING:
    from erniecore_generation.rollout import Rollout
    from numpy.typing import NDArray

    from erniecore_rl.prompts import Given

    Ints = NDArray[np.int64]

#: begins the names of arrays in a checkpoint
PREFIX = "learned."
ARRAYS = ("input_ids", "labels", "position_ids", "startend_row_indices")
#: fields of a sample, see above, and their dtypes
FIELDS: Mapping[str, Any] = {
    "sample": np.int8,
    "completion": np.int32,
    "learn": np.int8,
    "side": np.int8,
    "advantage": np.float64,
    "sampled": np.float64,
}
#: width of a batch that is all padding
_EMPTY_WIDTH = 8
#: up to this number of tokens, a longer sample is hardly more work
SHORT = 512


@dataclass(frozen=True)
class TrainedCompletion:
    """A completion to train on. ``inputs`` int64 [n], starting with the prompt's last token; ``labels`` int64 [n]; ``sampled``
    [n]: log-probabilities from the sampler, 0 where a token was not sampled."""

    inputs: Ints
    labels: Ints
    sampled: NDArray[np.float64]
    advantage: float = 0.0
    learn: int = 0
    side: int = 0

    def __len__(self) -> int:
        return len(self.inputs)


def sampled(prompt: Ints, rollout: Rollout, advantage: float, side: int = 0) -> TrainedCompletion:
    """A sampled completion; all of its tokens are loss tokens."""
    inputs = np.concatenate([prompt[-1:], rollout.ids[:-1]])
    return TrainedCompletion(inputs, rollout.ids, rollout.log_probs, advantage, learn=1, side=side)


def given(completion: Given, side: int) -> TrainedCompletion:
    """A completion of a pair from the data."""
    return TrainedCompletion(completion.inputs, completion.labels, np.zeros(len(completion.inputs)), side=side)


def samples_of(
    prompt: Ints, completions: Sequence[TrainedCompletion], origin: Origin, media: tuple[str, ...] = ()
) -> list[Sample]:
    """One sample with all completions, or one per completion: whichever has fewer pairs of tokens in attention, because the mask
    between completions saves no work."""
    shared = len(prompt) - 1 + sum(map(len, completions))
    apart = sum((len(prompt) - 1 + len(completion)) ** 2 for completion in completions)
    if shared <= SHORT or shared**2 <= apart:
        return [_sample(prompt, completions, origin, media)]
    return [_sample(prompt, [completion], origin, media) for completion in completions]


def _sample(prompt: Ints, completions: Sequence[TrainedCompletion], origin: Origin, media: tuple[str, ...]) -> Sample:
    K, sizes = len(prompt) - 1, [len(completion) for completion in completions]
    n, ends = K + sum(sizes), K + np.cumsum(sizes)

    def spread(values: Sequence[float]) -> NDArray[Any]:
        return np.concatenate([np.zeros(K), np.repeat(np.asarray(values, np.float64), sizes)])

    fields: dict[str, NDArray[Any]] = {
        "sample": np.arange(n) == 0,
        "completion": spread(range(1, len(completions) + 1)),
        "learn": spread([completion.learn for completion in completions]),
        "side": spread([completion.side for completion in completions]),
        "advantage": spread([completion.advantage for completion in completions]),
        "sampled": np.concatenate([np.zeros(K), *(completion.sampled for completion in completions)]),
    }
    fields = {name: values.astype(FIELDS[name]) for name, values in fields.items()}
    return Sample(
        input_ids=np.concatenate([prompt[:-1], *(completion.inputs for completion in completions)]),
        labels=np.concatenate([np.full(K, IGNORE), *(completion.labels for completion in completions)]).astype(
            np.int64
        ),
        position_ids=np.concatenate([np.arange(K), *(np.arange(K, K + size) for size in sizes)]).astype(np.int64),
        end_rows=np.concatenate([np.full(K, n), np.repeat(ends, sizes)]).astype(np.int32),
        fields=fields,
        origin=origin,
        media=media,
    )


def unlearned(sample: Sample) -> Sample:
    """The sample with all labels masked, for a step without loss tokens."""
    return replace(sample, labels=np.full_like(sample.labels, IGNORE))


def micro_batches(
    units: Sequence[Sequence[Sample]], size: int, pad_id: int, media: MediaReader | None = None
) -> list[Batch]:
    """Batches of about ``size`` completions, with samples of similar length to reduce padding; the samples of a unit stay
    together. ``media`` adds the images of samples that have any."""
    found: list[list[Sample]] = []
    room = 0
    for unit in sorted(units, key=lambda samples: max(map(len, samples))):
        num = sum(int(sample.fields["completion"].max()) for sample in unit)
        if not found or num > room:
            found.append([])
            room = size
        found[-1] += unit
        room -= num
    rows = [[[sample] for sample in part] for part in found]
    made = [collate(part, pad_id=pad_id) for part in rows]
    return made if media is None else [media.complete(batch, part) for batch, part in zip(made, rows, strict=True)]


def padding(pad_id: int) -> Batch:
    """A micro-batch without a sample, for a rank that has less to learn from than others; no token counts."""
    batch = collate([[]], pad_id=pad_id, length=_EMPTY_WIDTH)
    fields = {name: np.zeros(batch.input_ids.shape, dtype) for name, dtype in FIELDS.items()}
    return replace(batch, fields=fields)


@dataclass(frozen=True)
class Completions:
    """The completions of a micro-batch in the order of their tokens.

    Attributes:
        where: int64 [n], positions of loss tokens in the flattened batch. owner: int64 [n], the completion of each.
        lengths: int64 [a], tokens. learn: bool [a]; side: int8 [a], see above.
    """

    where: Ints
    owner: Ints
    lengths: Ints
    learn: NDArray[np.bool_]
    side: NDArray[np.int8]


def completions_of(batch: Batch) -> Completions:
    """The completion of each loss token, independent of packing."""
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    samples = np.cumsum(batch.fields["sample"].reshape(-1), dtype=np.int64)[where]
    numbers = batch.fields["completion"].reshape(-1)[where].astype(np.int64)
    keys = samples * (1 + int(numbers.max(initial=0))) + numbers
    _, first, owner, lengths = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    learn, side = (batch.fields[name].reshape(-1)[where[first]] for name in ("learn", "side"))
    return Completions(where, owner.reshape(-1), lengths, learn == 1, side)


def with_field(batch: Batch, name: str, where: Ints, values: NDArray[np.floating[Any]]) -> Batch:
    """``batch`` with a further float64 field: ``values`` [n] at the positions ``where``, 0 elsewhere."""
    field = np.zeros(batch.input_ids.size)
    field[where] = values
    return replace(batch, fields={**batch.fields, name: field.reshape(batch.input_ids.shape)})


def to_arrays(kept: Mapping[str, Sequence[Batch]]) -> dict[str, NDArray[Any]]:
    """Every array of some batches by name, behind that of what they belong to; where their samples came from is left out."""
    found: dict[str, NDArray[Any]] = {}
    for key, batches in kept.items():
        for i, batch in enumerate(batches):
            start = f"{PREFIX}{key}.{i:04d}"
            found.update({f"{start}.{name}": getattr(batch, name) for name in ARRAYS})
            found.update({f"{start}.fields.{name}": value for name, value in batch.fields.items()})
            found.update({f"{start}.inputs.{name}": value for name, value in batch.inputs.items()})
            found[f"{start}.counts"] = np.array([batch.num_tokens, batch.num_samples], np.int64)
    return found


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, list[Batch]]:
    """What :func:`to_arrays` was given; arrays of other names are ignored."""
    found: dict[str, list[Batch]] = {}
    own = {name.removeprefix(PREFIX): np.array(value) for name, value in arrays.items() if name.startswith(PREFIX)}
    for key, number in sorted({(name.split(".")[0], name.split(".")[1]) for name in own}):
        start = f"{key}.{number}."
        found.setdefault(key, []).append(
            _from_arrays({name.removeprefix(start): value for name, value in own.items() if name.startswith(start)})
        )
    return found


def _from_arrays(own: Mapping[str, NDArray[Any]]) -> Batch:
    fields, inputs = (
        {k.removeprefix(kind): v for k, v in own.items() if k.startswith(kind)} for kind in ("fields.", "inputs.")
    )
    tokens, samples = own["counts"].tolist()
    ids, labels, positions, ends = (own[name] for name in ARRAYS)
    batch = Batch(ids, labels, positions, ends, fields, num_tokens=tokens, num_samples=samples)
    return replace(batch, inputs=inputs)
