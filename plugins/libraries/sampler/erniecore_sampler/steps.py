"""Which samples form which step: pure functions of (seed, epoch, index), so that the step number alone is the place in the
data and a sampler has no state to save.

A step consists of ``accumulation`` micro-batches on each of ``data_size`` ranks, or of as many on each as ``shares`` says.
Which sequences form a step depends neither on the number of ranks nor on how they are assigned, as long as the sum stays. The
last step of an epoch takes what is left: nothing is dropped and nothing repeated; a rank without a sequence gets an empty
micro-batch, because all ranks must take part in every step.
Samplers know sample indices alone; the data loader makes batches of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from erniecore_sampler.mixing import Mix, epoch_order, num_samples
from erniecore_sampler.packing import Packs, pack

if TYPE_CHECKING:
    from erniecore_sampler.order import Array

#: sequences of one micro-batch, each the indices of the samples that are packed into it
MicroBatch: TypeAlias = list[list[int]]


@dataclass(frozen=True)
class SamplerSettings:
    """How samples become sequences and sequences become the steps of one rank; the names are those of the settings.

    Attributes:
        mix: what an epoch takes of the sources.
        seed: of orders.
        data_rank, data_size: this rank's place among the data-parallel ranks.
        shares: micro-batches of a step on each of them, where they differ; else ``accumulation`` on each.
        static_shapes: all micro-batches have the shape ``static_shape``.

    Raises:
        ValueError: a rank outside of ``data_size``, or another number of shares.
    """

    packing: str = "greedy"
    max_seq_len: int = 2048
    max_patches: int = 0
    packing_buffer: int = 500
    shuffle: bool = True
    mix: Mix = field(default_factory=Mix)
    batch_size: int = 1
    accumulation: int = 1
    seed: int = 0
    data_rank: int = 0
    data_size: int = 1
    shares: tuple[int, ...] = ()
    static_shapes: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.data_rank < self.data_size:
            raise ValueError(f"rank {self.data_rank} of {self.data_size}")
        if self.shares and (len(self.shares) != self.data_size or min(self.shares) < 1):
            raise ValueError(f"shares {self.shares} of {self.data_size} ranks")

    @property
    def micro_batches(self) -> int:
        """Of a full step, on all ranks together."""
        return sum(self.shares) or self.accumulation * self.data_size

    @property
    def static_shape(self) -> tuple[int, int] | None:
        """(sequences, tokens of each) of every micro-batch; None: they differ. Without padding between samples it is one
        sequence."""
        if not self.static_shapes:
            return None
        free = self.packing == "padding-free"
        return (1, self.batch_size * self.max_seq_len) if free else (self.batch_size, self.max_seq_len)

    def rounds(self, count: int) -> list[list[int]]:
        """The micro-batches 0..count-1 of a step by rank, in the order in which ranks that are as fast as their shares are
        large come to them: of a shortened last step, all have about the same part of their share."""
        shares = self.shares or (self.accumulation,) * self.data_size
        order = sorted(((turn + 1) / share, rank) for rank, share in enumerate(shares) for turn in range(share))
        found: list[list[int]] = [[] for _ in shares]
        for number, (_, rank) in enumerate(order[:count]):
            found[rank].append(number)
        return found


class SampleLengths(Protocol):
    """What packing asks of a data set: how long its samples are, and how many each source has."""

    @property
    def lengths(self) -> Array:
        """Tokens of each sample [N]."""

    @property
    def files(self) -> Sequence[Any]:
        """What the samples come from, in order."""

    def source_sizes(self, count: int) -> list[int]:
        """Samples of each of ``count`` sources; they are one after the other."""

    def __len__(self) -> int: ...


class BatchSampler(ABC):
    """Assigns samples to sequences, and sequences to steps and ranks. A subclass says what the sequences of an epoch are.

    Args:
        settings: see :class:`SamplerSettings`.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        self.settings = settings
        self._ends: list[int] = []  # steps up to and with epoch i

    @abstractmethod
    def num_sequences(self, epoch: int) -> int:
        """Sequences of an epoch, on all ranks together."""

    @abstractmethod
    def sequences(self, epoch: int, start: int, stop: int) -> list[list[int]]:
        """The sequences start..stop-1 of an epoch in its order, each as sample indices."""

    @abstractmethod
    def fill_rate(self, epoch: int = 0) -> float:
        """Share of the positions of an epoch's sequences that hold tokens."""

    def counted_sequences(self) -> dict[int, int]:
        """Sequences by epoch, where counting them is work that a resumed run should not repeat; else nothing."""
        return {}

    @property
    def sequences_per_step(self) -> int:
        """Sequences that one optimizer step takes on all ranks together."""
        return self.settings.batch_size * self.settings.micro_batches

    def steps_in_epoch(self, epoch: int = 0) -> int:
        """Optimizer steps, the last one possibly smaller."""
        return math.ceil(self.num_sequences(epoch) / self.sequences_per_step)

    def total_steps(self, epochs: float) -> int:
        """Steps of that many passes; at least 1."""
        whole = int(epochs)
        steps = self._end(whole - 1) if whole else 0
        rest = epochs - whole
        return max(1, steps + (math.ceil(rest * self.steps_in_epoch(whole)) if rest > 1e-9 else 0))

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step within it) of a global step, counted from 0."""
        epoch = 0
        while self._end(epoch) <= step:
            epoch += 1
        return epoch, step - (self._end(epoch - 1) if epoch else 0)

    def step(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a global step, counted from 0; on every rank as many, of which the last ones may be
        empty."""
        epoch, index = self.locate(step)
        first = index * self.sequences_per_step
        last = min(first + self.sequences_per_step, self.num_sequences(epoch))
        size = self.settings.batch_size
        rounds = self.settings.rounds(math.ceil((last - first) / size))
        starts = [first + number * size for number in rounds[self.settings.data_rank]]
        found = [self.sequences(epoch, start, min(start + size, last)) for start in starts]
        return found + [[] for _ in range(max(map(len, rounds)) - len(found))]

    def epoch(self, epoch: int = 0) -> Iterator[MicroBatch]:
        """This rank's micro-batches of one epoch, in order (evaluation)."""
        first = self._end(epoch - 1) if epoch else 0
        for index in range(self.steps_in_epoch(epoch)):
            yield from self.step(first + index)

    def static_positions(self, epoch: int = 0) -> int:
        """Positions of all micro-batches of an epoch with static shapes on all ranks, empty ones included."""
        s, steps = self.settings, self.steps_in_epoch(epoch)
        left = self.num_sequences(epoch) - (steps - 1) * self.sequences_per_step
        counts = (steps - 1, s.micro_batches), (1, math.ceil(left / s.batch_size))
        turns = sum(number * max(map(len, s.rounds(count))) for number, count in counts)
        return turns * s.data_size * s.batch_size * s.max_seq_len

    def _end(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            self._ends.append((self._ends[-1] if self._ends else 0) + self.steps_in_epoch(len(self._ends)))
        return self._ends[epoch]


class PackedBatchSampler(BatchSampler):
    """Sequences of samples of known lengths, packed as ``settings.packing`` says.

    Args:
        dataset: the samples, none longer than ``settings.max_seq_len``.
        known_sequences: sequences of epochs that were counted before, so that a later step is found without packing
            them again.
        patches: of each sample [N]. Packed sequences have at most ``settings.max_patches``, and micro-batches of a step are
            made so that they and the ranks have about as many: which sequences a step has stays the same.

    Raises:
        ValueError: no samples.
    """

    def __init__(
        self,
        dataset: SampleLengths,
        settings: SamplerSettings,
        *,
        known_sequences: Mapping[int, int] | None = None,
        patches: Array | None = None,
    ) -> None:
        super().__init__(settings)
        if not len(dataset):
            raise ValueError("a batch sampler needs at least one sample")
        self.dataset, self.patches = dataset, patches
        self._single = settings.packing in ("none", "padding-free")  # one sample per sequence
        self._sizes = dataset.source_sizes(len(dataset.files))
        self._counts = dict(known_sequences or {})
        self._packs = lru_cache(maxsize=2)(self._pack)

    def num_sequences(self, epoch: int) -> int:
        """See ``BatchSampler``; packing depends on the order."""
        if epoch not in self._counts:
            count = num_samples(self._sizes, self.settings.mix, epoch) if self._single else len(self._packs(epoch))
            self._counts[epoch] = count
        return self._counts[epoch]

    def counted_sequences(self) -> dict[int, int]:
        """Of the epochs that were counted so far; see ``known_sequences``."""
        return dict(self._counts)

    def sequences(self, epoch: int, start: int, stop: int) -> list[list[int]]:
        return self._packs(epoch)[start:stop]

    def step(self, step: int) -> list[MicroBatch]:
        if self.patches is None:
            return super().step(step)
        epoch, index = self.locate(step)
        first = index * self.sequences_per_step
        found = self.sequences(epoch, first, min(first + self.sequences_per_step, self.num_sequences(epoch)))
        costs = [int(self.patches[sequence].sum()) for sequence in found]
        if self.settings.shares:
            rounds = self.settings.rounds(math.ceil(len(found) / self.settings.batch_size))
            groups = balanced(costs, sum(map(len, rounds)), self.settings.batch_size)
            own = [[found[i] for i in groups[number]] for number in rounds[self.settings.data_rank]]
            return own + [[] for _ in range(max(map(len, rounds)) - len(own))]
        size, ranks = self.settings.batch_size, self.settings.data_size
        groups = balanced(costs, math.ceil(len(found) / (size * ranks)) * ranks, size)
        return [[found[i] for i in members] for members in groups[self.settings.data_rank :: ranks]]

    def fill_rate(self, epoch: int = 0) -> float:
        """See ``BatchSampler``; 1 for sequences without padding."""
        packs = self._packs(epoch)
        if self.settings.static_shapes:
            return float(self.dataset.lengths[packs.members].sum(dtype=np.int64) / self.static_positions(epoch))
        if self.settings.packing == "padding-free" or not len(packs):
            return 1.0
        lengths = self.dataset.lengths[packs.members]
        if self.settings.packing == "none":
            starts = np.arange(0, len(packs), self.settings.batch_size)
            widths = np.maximum.reduceat(lengths, starts).astype(np.int64) * np.diff([*starts, len(packs)])
            return float(lengths.sum(dtype=np.int64) / widths.sum())
        return float(lengths.sum(dtype=np.int64) / (len(packs) * self.settings.max_seq_len))

    def _pack(self, epoch: int) -> Packs:
        """The sequences of an epoch, in order."""
        s = self.settings
        order = epoch_order(self._sizes, s.mix, shuffle=s.shuffle, seed=s.seed, epoch=epoch)
        if self._single:
            return Packs(order)
        patches = None if self.patches is None else self.patches[order]
        lengths, most = self.dataset.lengths[order], s.max_patches
        packs = pack(lengths, s.max_seq_len, s.packing, s.packing_buffer, patches=patches, max_patches=most)
        return Packs(order[packs.members], packs.ends)


def balanced(costs: Sequence[int], groups: int, size: int) -> list[list[int]]:
    """Indices of ``costs`` in groups of at most ``size`` whose sums are about equal: the largest first, each to the group with
    the smallest sum so far (R. L. Graham, 1969), of these the one with the fewest members."""
    out: list[list[int]] = [[] for _ in range(groups)]
    sums = [0] * groups
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        open_groups = (g for g in range(groups) if len(out[g]) < size)
        group = min(open_groups, key=lambda g: (sums[g], len(out[g]), g))
        out[group].append(i)
        sums[group] += costs[i]
    return [sorted(members) for members in out]
