"""Answers as samples, samples as micro-batches, and micro-batches as arrays for a checkpoint; numpy only.

Per-token fields of a micro-batch: ``sample`` is 1 at the first token; ``learn`` is 1 in answers that the policy gradient
learns from; ``side`` is CHOSEN or REJECTED in answers that are one of a pair, else 0: the k-th CHOSEN answer of a micro-batch
and its k-th REJECTED one are a pair; ``advantage``, ``sampled`` and ``old`` (log-probability when the answer was tried,
as the sampler and as the learner computed it) and ``reference`` (that under the reference) are for the position that predicts
a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api import IGNORE, Batch, Sample, collate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.api import Rollout
    from erniecore_rl.prompts import Given, Prompt

    Ints = NDArray[np.int64]

ARRAYS = ("input_ids", "labels", "position_ids", "startend_row_indices")


def tried_sample(prompt: Prompt, rollout: Rollout, advantage: float, side: int = 0) -> Sample:
    """``prompt`` with an answer that the model tried; each of its tokens is learned."""
    inputs = np.concatenate([prompt.ids, rollout.ids[:-1]])
    labels = np.concatenate([np.full(len(prompt.ids) - 1, IGNORE), rollout.ids]).astype(np.int64)
    sample = _sample(prompt, inputs, labels, advantage, learn=1, side=side)
    sample.fields["sampled"][len(prompt.ids) - 1 :] = rollout.log_probs
    return sample


def given_sample(prompt: Prompt, given: Given, side: int) -> Sample:
    """``prompt`` with an answer of a pair from the data."""
    inputs = np.concatenate([prompt.ids[:-1], given.inputs])
    labels = np.concatenate([np.full(len(prompt.ids) - 1, IGNORE), given.labels]).astype(np.int64)
    return _sample(prompt, inputs, labels, 0.0, learn=0, side=side)


def _sample(prompt: Prompt, inputs: Ints, labels: Ints, advantage: float, *, learn: int, side: int) -> Sample:
    n, answer = len(inputs), labels != IGNORE
    fields: dict[str, NDArray[Any]] = {
        "sample": (np.arange(n) == 0).astype(np.int8),
        "learn": (answer * learn).astype(np.int8),
        "side": (answer * side).astype(np.int8),
        "advantage": (answer * advantage).astype(np.float64),
        "sampled": np.zeros(n),
    }
    return Sample(
        input_ids=inputs,
        labels=labels,
        position_ids=np.arange(n, dtype=np.int64),
        end_rows=np.full(n, n, np.int32),
        fields=fields,
        origin=prompt.origin,
    )


def unlearned(sample: Sample) -> Sample:
    """The sample without anything to learn, for a step in which nothing is."""
    zeros = {name: np.zeros_like(value) for name, value in sample.fields.items() if name != "sample"}
    fields = {**sample.fields, **zeros}
    return replace(sample, labels=np.full_like(sample.labels, IGNORE), fields=fields)


def micro_batches(units: Sequence[Sequence[Sample]], size: int, pad_id: int) -> list[Batch]:
    """About ``size`` samples per batch, of similar length so that little is padded; a unit's samples stay together."""
    found: list[list[Sample]] = []
    for unit in sorted(units, key=lambda samples: max(map(len, samples))):
        if not found or len(found[-1]) + len(unit) > size:
            found.append([])
        found[-1] += unit
    return [collate([[sample] for sample in part], pad_id=pad_id) for part in found]


@dataclass(frozen=True)
class Answers:
    """The answers of a micro-batch in the order of their rows.

    Attributes:
        where: int64 [n], learned positions in the flattened batch. owner: int64 [n], the answer of each.
        lengths: int64 [a], tokens. learn: bool [a]; side: int8 [a], see above.
    """

    where: Ints
    owner: Ints
    lengths: Ints
    learn: NDArray[np.bool_]
    side: NDArray[np.int8]


def answers_of(batch: Batch) -> Answers:
    """Which learned positions belong to which answer, however the samples were packed."""
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    samples = np.cumsum(batch.fields["sample"].reshape(-1), dtype=np.int64)[where]
    _, first, owner, lengths = np.unique(samples, return_index=True, return_inverse=True, return_counts=True)
    learn, side = (batch.fields[name].reshape(-1)[where[first]] for name in ("learn", "side"))
    return Answers(where, owner.reshape(-1), lengths, learn == 1, side)


def with_field(batch: Batch, name: str, where: Ints, values: NDArray[np.floating[Any]]) -> Batch:
    """``batch`` with a further float64 field: ``values`` [n] at the positions ``where``, 0 elsewhere."""
    field = np.zeros(batch.input_ids.size)
    field[where] = values
    return replace(batch, fields={**batch.fields, name: field.reshape(batch.input_ids.shape)})


def to_arrays(batches: Sequence[Batch]) -> dict[str, NDArray[Any]]:
    """Every array of some batches by name; where their samples came from is left out."""
    found: dict[str, NDArray[Any]] = {}
    for i, batch in enumerate(batches):
        found.update({f"{i:04d}.{name}": getattr(batch, name) for name in ARRAYS})
        found.update({f"{i:04d}.fields.{name}": value for name, value in batch.fields.items()})
        found[f"{i:04d}.counts"] = np.array([batch.num_tokens, batch.num_samples], np.int64)
    return found


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[Batch]:
    """The batches that :func:`to_arrays` was given."""
    found = []
    for number in sorted({name.partition(".")[0] for name in arrays}):
        own = {k.partition(".")[2]: np.array(v) for k, v in arrays.items() if k.startswith(f"{number}.")}
        fields = {k.removeprefix("fields."): v for k, v in own.items() if k.startswith("fields.")}
        tokens, samples = own["counts"].tolist()
        ids, labels, positions, ends = (own[name] for name in ARRAYS)
        found.append(Batch(ids, labels, positions, ends, fields, num_tokens=tokens, num_samples=samples))
    return found
