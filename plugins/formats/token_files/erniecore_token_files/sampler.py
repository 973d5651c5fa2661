"""Samples of token files as a dataset, and which of them form a step: a pure function of (seed, index). Memory does not grow
with the files. Each sample is a sequence of its own: it is as long as a sequence already.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api.corpus import BatchSampler, SamplerSettings, num_samples, stretches
from erniecore.api.data import Sample
from erniecore_token_files.order import blended, permuted
from erniecore_token_files.spans import TokenSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


class TokenFileDataset:
    """The samples of spans, span after span; see ``Dataset``.

    Args:
        spans: the sources. length: of a sample in tokens; the last one of a span may be shorter.

    Raises:
        ValueError: no span, or one of fewer than two tokens.
    """

    def __init__(self, spans: Sequence[TokenSpan], length: int) -> None:
        self.spans, self.length = tuple(spans), length
        self.sizes = [span.num_windows(length) for span in spans]
        self._ends = list(accumulate(self.sizes))
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError("every source of a corpus needs at least two tokens")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        source = bisect_right(self._ends, index)
        return self.spans[source].sample(index - self.first(source), self.length)

    def first(self, source: int) -> int:
        """Index of the first sample of a span."""
        return self._ends[source] - self.sizes[source]

    @property
    def num_targets(self) -> int:
        """Positions of all samples together."""
        return sum(span.num_tokens - 1 for span in self.spans)

    def fingerprint(self) -> str:
        """Identity of the samples, given the files."""
        facts = [
            (s.start, s.stop, s.file.num_tokens, s.file.num_documents, s.file.tokens.dtype.str) for s in self.spans
        ]
        return hashlib.sha256(json.dumps([self.length, facts]).encode()).hexdigest()


class TokenFileSampler(BatchSampler):
    """Steps of a :class:`TokenFileDataset`.

    Args:
        settings: how many samples of each source an epoch takes (``mix``), and of how many a step consists.
    """

    def __init__(self, dataset: TokenFileDataset, settings: SamplerSettings) -> None:
        super().__init__(settings)
        self.dataset = dataset

    @cached_property
    def _firsts(self) -> IntArray:
        return np.array([self.dataset.first(source) for source in range(len(self.dataset.sizes))])

    def num_sequences(self, epoch: int) -> int:
        return num_samples(self.dataset.sizes, self.settings.mix, epoch)

    def fill_rate(self, epoch: int = 0) -> float:
        """See ``BatchSampler``; only the last sample of a source can be shorter."""
        if self.settings.static_shapes:  # of an epoch, whose samples are nearly all alike
            whole = self.dataset.num_targets / len(self.dataset)
            return whole * self.num_sequences(epoch) / self.static_positions(epoch)
        return self.dataset.num_targets / (len(self.dataset) * self.dataset.length)

    def sequences(self, epoch: int, start: int, stop: int) -> list[list[int]]:
        """See ``BatchSampler``.

        An epoch takes the next stretch of every source's endless walk, spread evenly over the epoch; unshuffled ``concat``:
        one source after the other."""
        mix, indices = self.settings.mix, np.arange(start, stop)
        starts, counts = np.array(stretches(self.dataset.sizes, mix, epoch)).T
        if self.settings.shuffle or mix.kind != "concat" or mix.epoch_samples:
            sources, ranks = blended(counts, indices)
        else:
            ends = np.cumsum(counts)
            sources = np.searchsorted(ends, indices, side="right")
            ranks = indices - (ends - counts)[sources]
        windows = self._walked(sources, starts[sources] + ranks)
        return [[index] for index in (self._firsts[sources] + windows).tolist()]

    def _walked(self, sources: IntArray, ranks: IntArray) -> IntArray:
        """Windows at these places of the endless walks over the sources, in a new order each time round."""
        sizes = np.array(self.dataset.sizes)[sources]
        windows: IntArray = ranks % sizes
        if self.settings.shuffle:
            turns = ranks // sizes
            for source, turn in {*zip(sources.tolist(), turns.tolist(), strict=True)}:
                here = (sources == source) & (turns == turn)
                purpose = f"source-{source}-{turn}"
                size = self.dataset.sizes[source]
                windows[here] = permuted(windows[here], size, seed=self.settings.seed, purpose=purpose)
        return windows
