"""Batches of token files: their tokens are one long stream, cut into samples of ``max_seq_len``; which samples form a step
is a pure function of (seed, index). Documents that share a sample never see each other, as packed samples do not.

Every pair of neighbouring tokens of a document is learned exactly once per epoch; the last token of a document predicts
nothing. Memory does not grow with the corpus: places in the files are computed, not listed. ``loader.py`` is the same
for samples that are tokenised when a run starts; the step number alone is the place in the data in both.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from erniecore.data.collate import collate
from erniecore.data.corpus_order import blended, permuted
from erniecore.data.loader import LoaderSettings
from erniecore.data.mixing import num_samples, stretches
from erniecore.data.token_files import TokenFile, files_of
from erniecore.types import IGNORE, Batch, Origin, Sample

if TYPE_CHECKING:
    from erniecore.types.samples import IntArray

#: width of a batch that is all padding
_EMPTY_WIDTH = 8


@dataclass(frozen=True, eq=False)
class TokenSpan:
    """Tokens start..stop-1 of a file: some of its documents, whole ones."""

    file: TokenFile
    start: int
    stop: int

    @classmethod
    def whole(cls, file: TokenFile) -> TokenSpan:
        """Everything in it."""
        return cls(file, 0, file.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Of all documents."""
        return self.stop - self.start

    @property
    def num_documents(self) -> int:
        """Whole documents in it."""
        return self.file.document(self.stop - 1) - self.file.document(self.start) + 1

    def num_windows(self, length: int) -> int:
        """Samples of at most ``length`` tokens; the last token of all is a target only."""
        return max(0, -(-(self.num_tokens - 1) // length))

    def sample(self, window: int, length: int) -> Sample:
        """The window's tokens, each with the next one of its document as its label."""
        start = self.start + window * length
        stop = min(start + length, self.stop - 1)
        n = stop - start
        ids = self.file.tokens[start : stop + 1].astype(np.int64)
        begins = self.file.starts_within(start, stop + 1) - start
        labels = ids[1:].copy()
        labels[begins - 1] = IGNORE
        edges = np.concatenate([[0], begins[begins < n], [n]])
        lengths = np.diff(edges)
        return Sample(
            input_ids=ids[:-1],
            labels=labels,
            position_ids=np.arange(n) - np.repeat(edges[:-1], lengths),
            end_rows=np.repeat(edges[1:], lengths).astype(np.int32),
            origin=Origin(str(files_of(self.file.prefix)[0]), self.file.document(start) + 1),
        )


def split_tail(file: TokenFile, fraction: float) -> tuple[TokenSpan, TokenSpan | None]:
    """The file without its last documents, and these: as close to ``fraction`` of the tokens as whole documents allow.

    No held-out part where that would be none of the documents or all of them.
    """
    target = round(file.num_tokens * (1 - fraction))
    here = file.document(min(target, file.num_tokens - 1))
    cut = min((file.start(here), file.start(here + 1)), key=lambda start: abs(start - target))
    if not 0 < cut < file.num_tokens:
        return TokenSpan.whole(file), None
    return TokenSpan(file, 0, cut), TokenSpan(file, cut, file.num_tokens)


class CorpusPlan:
    """The batches of one split for one rank; see ``loader.BatchPlan``.

    Args:
        spans: the sources. settings: how many samples of each an epoch takes (``mix``), and of how many a step consists.
        seed: of orders. pad_id: the tokenizer's.
        data_rank, data_size: this rank's place among the data-parallel ranks.

    Raises:
        ValueError: no samples, or a rank outside of ``data_size``.
    """

    def __init__(
        self,
        spans: Sequence[TokenSpan],
        settings: LoaderSettings,
        *,
        seed: int,
        pad_id: int,
        data_rank: int = 0,
        data_size: int = 1,
    ) -> None:
        if not 0 <= data_rank < data_size:
            raise ValueError(f"rank {data_rank} of {data_size}")
        self.spans, self.settings, self.seed, self.pad_id = tuple(spans), settings, seed, pad_id
        self.data_rank, self.data_size = data_rank, data_size
        self._sizes = [span.num_windows(settings.max_seq_len) for span in spans]
        self._ends: list[int] = []  # steps up to and with epoch i
        if not self._sizes or min(self._sizes) < 1:
            raise ValueError("every source of a corpus needs at least two tokens")

    # ---- size

    @property
    def num_samples(self) -> int:
        """Samples of the split, on all ranks together."""
        return sum(self._sizes)

    @property
    def rows_per_step(self) -> int:
        """Samples that one optimizer step takes on all ranks together."""
        return self.settings.batch_size * self.settings.accumulation * self.data_size

    def steps_in_epoch(self, epoch: int = 0) -> int:
        """Optimizer steps, the last one possibly smaller."""
        return math.ceil(num_samples(self._sizes, self.settings.mix, epoch) / self.rows_per_step)

    def total_steps(self, epochs: float) -> int:
        """Steps of that many passes; at least 1."""
        whole = int(epochs)
        steps = self._end(whole - 1) if whole else 0
        part = epochs - whole
        return max(1, steps + (math.ceil(part * self.steps_in_epoch(whole)) if part > 1e-9 else 0))

    def fill_rate(self, epoch: int = 0) -> float:
        """Share of the positions that hold tokens; only the last sample of a source can be shorter."""
        return sum(s.num_tokens - 1 for s in self.spans) / (self.num_samples * self.settings.max_seq_len)

    def fingerprint(self) -> str:
        """Identity of the samples, given the files."""
        facts = [
            (s.start, s.stop, s.file.num_tokens, s.file.num_documents, s.file.tokens.dtype.str) for s in self.spans
        ]
        return hashlib.sha256(json.dumps([self.settings.max_seq_len, facts]).encode()).hexdigest()

    # ---- batches

    def step(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a global step, counted from 0; at most ``accumulation``, on every rank as many."""
        epoch = 0
        while self._end(epoch) <= step:
            epoch += 1
        first = (step - (self._end(epoch - 1) if epoch else 0)) * self.rows_per_step
        last = min(first + self.rows_per_step, num_samples(self._sizes, self.settings.mix, epoch))
        size = self.settings.batch_size
        count = math.ceil((last - first) / (size * self.data_size))
        starts = [first + (micro * self.data_size + self.data_rank) * size for micro in range(count)]
        return [self._batch(epoch, np.arange(start, min(start + size, last))) for start in starts]

    def batches(self, epoch: int = 0) -> Iterator[Batch]:
        """This rank's micro-batches of one epoch, in order (evaluation)."""
        first = self._end(epoch - 1) if epoch else 0
        for index in range(self.steps_in_epoch(epoch)):
            yield from self.step(first + index)

    def places(self, epoch: int, indices: IntArray) -> list[tuple[int, int]]:
        """(source, window) of the samples of an epoch by their index in it.

        The epoch's stretch of every source's endless walk, spread evenly over the epoch; unshuffled ``concat``: one
        source after the other."""
        mix = self.settings.mix
        starts, counts = np.array(stretches(self._sizes, mix, epoch)).T
        if self.settings.shuffle or mix.kind != "concat" or mix.epoch_samples:
            sources, ranks = blended(counts, indices)
        else:
            ends = np.cumsum(counts)
            sources = np.searchsorted(ends, indices, side="right")
            ranks = indices - (ends - counts)[sources]
        return self._walked(sources, starts[sources] + ranks)

    def _walked(self, sources: IntArray, ranks: IntArray) -> list[tuple[int, int]]:
        """Places in the endless walks over the sources, in a new order each time round, as (source, window)."""
        sizes = np.array(self._sizes)[sources]
        windows = ranks % sizes
        if self.settings.shuffle:
            turns = ranks // sizes
            for source, turn in {*zip(sources.tolist(), turns.tolist(), strict=True)}:
                here = (sources == source) & (turns == turn)
                purpose = f"source-{source}-{turn}"
                windows[here] = permuted(windows[here], self._sizes[source], seed=self.seed, purpose=purpose)
        return list(zip(sources.tolist(), windows.tolist(), strict=True))

    def _end(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            self._ends.append((self._ends[-1] if self._ends else 0) + self.steps_in_epoch(len(self._ends)))
        return self._ends[epoch]

    def _batch(self, epoch: int, indices: IntArray) -> Batch:
        if not len(indices):
            return collate([[]], pad_id=self.pad_id, length=_EMPTY_WIDTH)
        length = self.settings.max_seq_len
        samples = [self.spans[source].sample(window, length) for source, window in self.places(epoch, indices)]
        return collate([[s] for s in samples], pad_id=self.pad_id, multiple=self.settings.pad_multiple)
