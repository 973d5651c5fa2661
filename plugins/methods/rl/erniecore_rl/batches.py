"""Answers as samples, samples as micro-batches, and micro-batches as arrays for a checkpoint; numpy only.

Answers to one prompt share a sample, [prompt | answer 1 | answer 2 | …], where that is less work. As in
``erniecore_preference.encoder``, ``prompt`` is without its last token, which every answer repeats because it predicts the
answer's first token; all answers start at the same position and do not see each other.

Per-token fields: ``sample`` is 1 at the first token; ``answer`` numbers the answers of a sample from 1, 0 in the prompt;
``learn`` is 1 in answers that the policy gradient learns from; ``side`` is CHOSEN or REJECTED in answers that are one of a
pair, else 0: the k-th CHOSEN answer of a micro-batch and its k-th REJECTED one are a pair; ``advantage``, ``sampled`` and
``old`` (log-probability at the rollout, as the sampler and as the learner computed it) and ``reference`` (that under
the reference) are for the position that predicts a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api.corpus import collate
from erniecore.api.method import IGNORE, Batch, Origin, Sample

if TYPE_CHECKING:
    from erniecore_generation.rollout import Rollout
    from numpy.typing import NDArray

    from erniecore_rl.prompts import Given

    Ints = NDArray[np.int64]

ARRAYS = ("input_ids", "labels", "position_ids", "startend_row_indices")
#: a sample of so many tokens is hardly more work than a short one
SHORT = 512


@dataclass(frozen=True)
class Piece:
    """An answer that is learned from. ``inputs`` int64 [n]: the first is the prompt's last token; ``labels`` int64 [n];
    ``sampled`` [n]: log-probabilities by the sampler, 0 where it was not sampled."""

    inputs: Ints
    labels: Ints
    sampled: NDArray[np.float64]
    advantage: float = 0.0
    learn: int = 0
    side: int = 0

    def __len__(self) -> int:
        return len(self.inputs)


def sampled(prompt: Ints, rollout: Rollout, advantage: float, side: int = 0) -> Piece:
    """A completion of the model; each of its tokens is learned."""
    inputs = np.concatenate([prompt[-1:], rollout.ids[:-1]])
    return Piece(inputs, rollout.ids, rollout.log_probs, advantage, learn=1, side=side)


def given(answer: Given, side: int) -> Piece:
    """An answer of a pair from the data."""
    return Piece(answer.inputs, answer.labels, np.zeros(len(answer.inputs)), side=side)


def samples_of(prompt: Ints, pieces: Sequence[Piece], origin: Origin) -> list[Sample]:
    """One sample of all answers, or one for each: what has fewer pairs of tokens that attention looks at, because
    answers in one sample are hidden from each other only after that."""
    shared = len(prompt) - 1 + sum(map(len, pieces))
    apart = sum((len(prompt) - 1 + len(piece)) ** 2 for piece in pieces)
    if shared <= SHORT or shared**2 <= apart:
        return [_sample(prompt, pieces, origin)]
    return [_sample(prompt, [piece], origin) for piece in pieces]


def _sample(prompt: Ints, pieces: Sequence[Piece], origin: Origin) -> Sample:
    K, sizes = len(prompt) - 1, [len(piece) for piece in pieces]
    n, ends = K + sum(sizes), K + np.cumsum(sizes)

    def spread(values: Sequence[float], dtype: Any) -> NDArray[Any]:
        return np.concatenate([np.zeros(K), np.repeat(np.asarray(values, np.float64), sizes)]).astype(dtype)

    fields: dict[str, NDArray[Any]] = {
        "sample": (np.arange(n) == 0).astype(np.int8),
        "answer": spread(range(1, len(pieces) + 1), np.int32),
        "learn": spread([piece.learn for piece in pieces], np.int8),
        "side": spread([piece.side for piece in pieces], np.int8),
        "advantage": spread([piece.advantage for piece in pieces], np.float64),
        "sampled": np.concatenate([np.zeros(K), *(piece.sampled for piece in pieces)]),
    }
    return Sample(
        input_ids=np.concatenate([prompt[:-1], *(piece.inputs for piece in pieces)]),
        labels=np.concatenate([np.full(K, IGNORE), *(piece.labels for piece in pieces)]).astype(np.int64),
        position_ids=np.concatenate([np.arange(K), *(np.arange(K, K + size) for size in sizes)]).astype(np.int64),
        end_rows=np.concatenate([np.full(K, n), np.repeat(ends, sizes)]).astype(np.int32),
        fields=fields,
        origin=origin,
    )


def unlearned(sample: Sample) -> Sample:
    """The sample without anything to learn, for a step in which nothing is."""
    return replace(sample, labels=np.full_like(sample.labels, IGNORE))


def micro_batches(units: Sequence[Sequence[Sample]], size: int, pad_id: int) -> list[Batch]:
    """About ``size`` answers per batch, in samples of similar length so that little is padded; the samples of a unit
    stay together."""
    found: list[list[Sample]] = []
    room = 0
    for unit in sorted(units, key=lambda samples: max(map(len, samples))):
        num = sum(int(sample.fields["answer"].max()) for sample in unit)
        if not found or num > room:
            found.append([])
            room = size
        found[-1] += unit
        room -= num
    return [collate([[sample] for sample in part], pad_id=pad_id) for part in found]


@dataclass(frozen=True)
class Answers:
    """The answers of a micro-batch in the order of their tokens.

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
    numbers = batch.fields["answer"].reshape(-1)[where].astype(np.int64)
    keys = samples * (1 + int(numbers.max(initial=0))) + numbers
    _, first, owner, lengths = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
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
