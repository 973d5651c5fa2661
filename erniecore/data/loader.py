"""Batches of a run as a pure function of (seed, epoch, index): there is no loader state to save but the step number.

A step consists of ``accumulation`` micro-batches on each of ``data_size`` ranks. Which rows form a step depends on
neither the rank count nor on how they are dealt, as long as the product stays. The last step of an epoch takes what
is left: nothing is dropped and nothing repeated; a rank that would have no row gets a batch of padding, because all
ranks must take part in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from erniecore.config.core import DataSection, TrainSection
from erniecore.data.collate import collate
from erniecore.data.mixing import Mix, epoch_order, num_samples
from erniecore.data.packing import Packs, pack
from erniecore.data.store import SampleStore
from erniecore.types import Batch

#: width of a batch that is all padding
_EMPTY_WIDTH = 8


class BatchPlan(Protocol):
    """The batches of one split for one rank: what a run needs of its data. Every answer is a pure function of
    (seed, settings, samples, rank), so that the step number alone is the place in the data."""

    @property
    def num_samples(self) -> int:
        """Samples of the split, on all ranks together."""
        ...

    def fingerprint(self) -> str:
        """Identity of the samples: other files, tokenizers or settings of encoding give another one."""
        ...

    def step(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a global optimizer step, counted from 0; on every rank as many."""
        ...

    def batches(self, epoch: int = 0) -> Iterator[Batch]:
        """This rank's micro-batches of one epoch, in order (evaluation)."""
        ...

    def steps_in_epoch(self, epoch: int) -> int:
        """Optimizer steps of one epoch."""
        ...

    def total_steps(self, epochs: float) -> int:
        """Steps of that many epochs; at least 1."""
        ...

    def fill_rate(self, epoch: int = 0) -> float:
        """Share of the row positions that hold tokens."""
        ...


@dataclass(frozen=True)
class LoaderSettings:
    """How samples become rows and rows become steps; the names are those of the settings.

    Attributes:
        mix: what an epoch takes of the sources.
        pad_multiple: widths of padded rows are rounded up to it.
    """

    packing: str = "greedy"
    max_seq_len: int = 2048
    packing_buffer: int = 500
    shuffle: bool = True
    mix: Mix = field(default_factory=Mix)
    batch_size: int = 1
    accumulation: int = 1
    pad_multiple: int = 1

    @classmethod
    def training(cls, data: DataSection, train: TrainSection) -> LoaderSettings:
        """For the training split."""
        return cls(
            packing=data.packing,
            max_seq_len=data.max_seq_len,
            packing_buffer=data.packing_buffer,
            shuffle=data.shuffle,
            mix=Mix(
                kind=data.mix,
                weights=tuple(s.weight for s in data.train),
                epochs=tuple(s.epochs for s in data.train),
                epoch_samples=data.epoch_samples,
            ),
            batch_size=train.batch_size,
            accumulation=train.accumulation,
        )

    @classmethod
    def evaluation(cls, data: DataSection, batch_size: int) -> LoaderSettings:
        """For the held-out split: every sample once, in order."""
        return cls(
            packing=data.packing,
            max_seq_len=data.max_seq_len,
            packing_buffer=data.packing_buffer,
            shuffle=False,
            batch_size=batch_size,
        )


class DataPlan:
    """The batches of one split for one rank.

    Args:
        store: the samples, none longer than ``settings.max_seq_len``.
        seed: of orders. ``pad_id``: the tokenizer's.
        data_rank, data_size: this rank's place among the data-parallel ranks.
        known_rows: rows of epochs that were counted before, so that a later step is found without packing them again.

    Raises:
        ValueError: no samples, or a rank outside of ``data_size``.
    """

    def __init__(
        self,
        store: SampleStore,
        settings: LoaderSettings,
        *,
        seed: int,
        pad_id: int,
        data_rank: int = 0,
        data_size: int = 1,
        known_rows: Mapping[int, int] | None = None,
    ) -> None:
        if not len(store):
            raise ValueError("a data plan needs at least one sample")
        if not 0 <= data_rank < data_size:
            raise ValueError(f"rank {data_rank} of {data_size}")
        self.store, self.settings, self.seed, self.pad_id = store, settings, seed, pad_id
        self.data_rank, self.data_size = data_rank, data_size
        self._sizes = store.source_sizes(len(store.files))
        self._counts = dict(known_rows or {})  # rows by epoch
        self._ends: list[int] = []  # steps up to and with epoch i
        self._rows = lru_cache(maxsize=2)(self._make_rows)

    # ---- size

    @property
    def num_samples(self) -> int:
        """Samples of the split."""
        return len(self.store)

    def fingerprint(self) -> str:
        """Identity of the samples as tokens."""
        return self.store.fingerprint()

    @property
    def rows_per_step(self) -> int:
        """Rows that one optimizer step takes on all ranks together."""
        return self.settings.batch_size * self.settings.accumulation * self.data_size

    def num_rows(self, epoch: int) -> int:
        """Packed or single rows of an epoch (packing depends on the order)."""
        if epoch not in self._counts:
            single = self.settings.packing in ("none", "padding-free")
            mix = self.settings.mix
            self._counts[epoch] = num_samples(self._sizes, mix, epoch) if single else len(self._rows(epoch))
        return self._counts[epoch]

    def counted_rows(self) -> dict[int, int]:
        """Rows of the epochs that have been counted so far; see ``known_rows``."""
        return dict(self._counts)

    def steps_in_epoch(self, epoch: int) -> int:
        """Optimizer steps, the last one possibly smaller."""
        return math.ceil(self.num_rows(epoch) / self.rows_per_step)

    def total_steps(self, epochs: float) -> int:
        """Steps of that many passes; at least 1."""
        whole = int(epochs)
        steps = self._end(whole - 1) if whole else 0
        part = epochs - whole
        return max(1, steps + (math.ceil(part * self.steps_in_epoch(whole)) if part > 1e-9 else 0))

    def fill_rate(self, epoch: int = 0) -> float:
        """Share of the row positions that hold tokens (1 for unpadded rows)."""
        rows = self._rows(epoch)
        if self.settings.packing == "padding-free" or not len(rows):
            return 1.0
        lengths = self.store.lengths[rows.members]
        if self.settings.packing == "none":
            starts = np.arange(0, len(rows), self.settings.batch_size)
            widths = np.maximum.reduceat(lengths, starts).astype(np.int64) * np.diff([*starts, len(rows)])
            return float(lengths.sum(dtype=np.int64) / widths.sum())
        return float(lengths.sum(dtype=np.int64) / (len(rows) * self.settings.max_seq_len))

    # ---- batches

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step within it) of a global step, counted from 0."""
        epoch = 0
        while self._end(epoch) <= step:
            epoch += 1
        return epoch, step - (self._end(epoch - 1) if epoch else 0)

    def step(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a global step, counted from 0; at most ``accumulation``, on every rank as many."""
        epoch, index = self.locate(step)
        rows = self._rows(epoch)[index * self.rows_per_step : (index + 1) * self.rows_per_step]
        size = self.settings.batch_size
        count = math.ceil(len(rows) / (size * self.data_size))
        starts = [(micro * self.data_size + self.data_rank) * size for micro in range(count)]
        return [self._batch(rows[start : start + size]) for start in starts]

    def batches(self, epoch: int = 0) -> Iterator[Batch]:
        """This rank's micro-batches of one epoch, in order (evaluation)."""
        first = self._end(epoch - 1) if epoch else 0
        for index in range(self.steps_in_epoch(epoch)):
            yield from self.step(first + index)

    def _batch(self, rows: Sequence[Sequence[int]]) -> Batch:
        if not rows:
            return collate([[]], pad_id=self.pad_id, length=_EMPTY_WIDTH)
        samples = [[self.store[i] for i in row] for row in rows]
        if self.settings.packing == "padding-free":
            return collate([[s for row in samples for s in row]], pad_id=self.pad_id)
        return collate(samples, pad_id=self.pad_id, multiple=self.settings.pad_multiple)

    def _end(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            self._ends.append((self._ends[-1] if self._ends else 0) + self.steps_in_epoch(len(self._ends)))
        return self._ends[epoch]

    def _make_rows(self, epoch: int) -> Packs:
        """Rows of sample indices, in order."""
        s = self.settings
        order = epoch_order(self._sizes, s.mix, shuffle=s.shuffle, seed=self.seed, epoch=epoch)
        if s.packing in ("none", "padding-free"):
            return Packs(order)
        packs = pack(self.store.lengths[order], s.max_seq_len, s.packing, s.packing_buffer)
        return Packs(order[packs.members], packs.ends)
