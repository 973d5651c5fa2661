"""Batches of one split for one rank: samples of a dataset, chosen by a batch sampler, collated. A pure function of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from erniecore_sampler.steps import BatchSampler, MicroBatch

from erniecore.data.collate import collate
from erniecore.data.dataset import Dataset
from erniecore.types.samples import Batch, Draw, MediaReader, Sample

#: width of a batch that is all padding
_EMPTY_WIDTH = 8


class DataLoader:
    """Collates what ``sampler`` chooses of ``dataset``.

    Args:
        pad_id: the tokenizer's padding id. media: adds what media ask for.

    Attributes:
        shape: (sequences, tokens) of every batch; None: as long as the longest sequence.
    """

    def __init__(
        self, dataset: Dataset, sampler: BatchSampler, *, pad_id: int, media: MediaReader | None = None
    ) -> None:
        self.dataset, self.sampler, self.pad_id, self.media = dataset, sampler, pad_id, media
        self.shape = sampler.settings.static_shape

    def step(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a global optimizer step, counted from 0; on every rank as many."""
        draw = Draw(self.sampler.settings.seed, self.sampler.locate(step)[0]) if self.media is not None else None
        return [self._batch(chosen, draw) for chosen in self.sampler.step(step)]

    def epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """This rank's micro-batches of one epoch, in order (evaluation)."""
        return map(self._batch, self.sampler.epoch(epoch))

    def batch_of(self, indices: Sequence[int]) -> Batch:
        """These samples, one per sequence, padded to the longest."""
        return self._collated([[self.dataset[i]] for i in indices])

    def _batch(self, sequences: MicroBatch, draw: Draw | None = None) -> Batch:
        if not sequences and self.shape is None:
            return collate([[]], pad_id=self.pad_id, length=_EMPTY_WIDTH)
        samples = [[self.dataset[i] for i in sequence] for sequence in sequences]
        if self.sampler.settings.packing == "padding-free":
            samples = [[sample for sequence in samples for sample in sequence]]
        if self.shape is not None:
            size, length = self.shape
            return collate(samples + [[] for _ in range(size - len(samples))], pad_id=self.pad_id, length=length)
        return self._collated(samples, draw)

    def _collated(self, rows: list[list[Sample]], draw: Draw | None = None) -> Batch:
        batch = collate(rows, pad_id=self.pad_id)
        return batch if self.media is None else self.media.complete(batch, rows, draw=draw)
