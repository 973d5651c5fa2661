"""Datasets: tokenized samples by index. What a run asks of them are ``Dataset`` and ``TokenizedDataset``.

``ArrayDataset`` holds samples in memory in a few concatenated arrays: 8 bytes per token instead of Python objects, read-only
once built. Those on disk are ``shard_dataset.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from erniecore_sampler.order import index_dtype

from erniecore.types.records import Origin
from erniecore.types.samples import IGNORE, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.types.samples import Array, IntArray


#: tokens that a search looks at together
_AT_ONCE = 1 << 22


class Dataset(Protocol):
    """Samples by index: what a ``DataLoader`` needs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def fingerprint(self) -> str:
        """Identity of the samples as tokens: other files, tokenizers or settings of encoding give another one."""
        ...


class TokenizedDataset(Dataset, Protocol):
    """Samples of known lengths that were made of the rows of files, source after source: what packing needs."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the sources."""
        ...

    @property
    def lengths(self) -> Array:
        """Tokens per sample, int32 or int64 [N]."""
        ...

    @property
    def rows(self) -> Array:
        """Index of the row that each sample came from, over all sources [N]; not descending."""
        ...

    @property
    def num_tokens(self) -> int:
        """Of all samples together."""
        ...

    def source_sizes(self, count: int) -> list[int]:
        """Samples of each of ``count`` sources."""
        ...

    def media_items(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        """The samples that have media, ascending: index, ``Sample.media``."""
        ...

    def foreign_id(self, vocab_size: int) -> tuple[str, int, Origin] | None:
        """(``token`` or ``label``, id, where it came from) of an id outside of the vocabulary, if there is one."""
        ...


@dataclass(frozen=True)
class ArrayDataset:
    """All samples of a split in memory, in the order of their rows.

    Attributes:
        starts: int64 [N + 1]; sample i holds the tokens ``starts[i]:starts[i + 1]``.
        input_ids, labels: int32 [T].
        position_ids, end_rows: int32 [T], or ``None`` where every sample is plainly causal from position 0.
        fields: extra per-token arrays [T].
        rows: int64 [N], index of the row that the sample came from, over all sources; not descending.
        lines: int32 [N], positions as in ``Origin``, and ``sources`` int32 [N]: where it came from; ``files`` the names.
        truncated: index of the sample -> why it was shortened. media: index of the sample -> ``Sample.media``.
        digests: sha256 of the blocks of samples that it was joined from; empty: it is a single block.
    """

    starts: IntArray
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    position_ids: NDArray[np.int32] | None
    end_rows: NDArray[np.int32] | None
    rows: IntArray
    lines: NDArray[np.int32]
    sources: NDArray[np.int32]
    files: tuple[str, ...]
    fields: Mapping[str, Array] = field(default_factory=dict)
    truncated: Mapping[int, str] = field(default_factory=dict)
    media: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    digests: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """int64 [N], tokens per sample."""
        return np.diff(self.starts)

    @property
    def num_tokens(self) -> int:
        """Of all samples together."""
        return int(self.starts[-1])

    @property
    def num_loss_tokens(self) -> int:
        """Positions with a label."""
        return int((self.labels >= 0).sum())

    def __getitem__(self, index: int) -> Sample:
        start, end = int(self.starts[index]), int(self.starts[index + 1])
        n = end - start
        positions = np.arange(n) if self.position_ids is None else self.position_ids[start:end]
        bounds = np.full(n, n, np.int32) if self.end_rows is None else self.end_rows[start:end]
        return Sample(
            input_ids=self.input_ids[start:end].astype(np.int64),
            labels=self.labels[start:end].astype(np.int64),
            position_ids=positions.astype(np.int64),
            end_rows=bounds,
            fields={name: value[start:end] for name, value in self.fields.items()},
            truncated=self.truncated.get(index, ""),
            media=self.media.get(index, ()),
            origin=Origin(self.files[self.sources[index]], int(self.lines[index])),
        )

    def positions(self) -> NDArray[np.int32]:
        """``position_ids``, also where they are not stored."""
        if self.position_ids is not None:
            return self.position_ids
        return (np.arange(self.num_tokens) - np.repeat(self.starts[:-1], self.lengths)).astype(np.int32)

    def bounds(self) -> NDArray[np.int32]:
        """``end_rows``, also where they are not stored."""
        if self.end_rows is not None:
            return self.end_rows
        return np.repeat(self.lengths, self.lengths).astype(np.int32)

    def block_digests(self) -> tuple[bytes, ...]:
        """sha256 of each block; nothing without samples."""
        return self.digests or ((self._digest(),) if len(self) else ())

    def _digest(self) -> bytes:
        digest = hashlib.sha256(self.lengths.astype("<i4").tobytes())
        for array in (self.input_ids, self.labels, self.position_ids, self.end_rows):
            digest.update(b"-" if array is None else np.ascontiguousarray(array, "<i4").data)
        for name in sorted(self.fields):
            digest.update(f"{name} {self.fields[name].dtype.str}".encode())
            digest.update(np.ascontiguousarray(self.fields[name]).data)
        if self.media:
            digest.update(repr(sorted(self.media.items())).encode())
        return digest.digest()

    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(self.block_digests())).hexdigest()

    def foreign_id(self, vocab_size: int) -> tuple[str, int, Origin] | None:
        for what, ids in (("token", self.input_ids), ("label", self.labels)):
            for start in range(0, len(ids), _AT_ONCE):
                part = ids[start : start + _AT_ONCE]
                (bad,) = np.nonzero((part >= vocab_size) | ((part < 0) & ((part != IGNORE) | (what == "token"))))
                if len(bad):
                    place = start + int(bad[0])
                    sample = int(np.searchsorted(self.starts, place, side="right")) - 1
                    return what, int(ids[place]), self[sample].origin
        return None

    def media_items(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        return sorted(self.media.items())

    def source_sizes(self, count: int) -> list[int]:
        """Samples per source; sources are contiguous."""
        return [int(n) for n in np.bincount(self.sources, minlength=count)]


@dataclass(frozen=True)
class Subset:
    """Some samples of a dataset, in its order, without a copy.

    Attributes:
        base: the dataset. indices: of its samples, ascending [N].
    """

    base: TokenizedDataset
    indices: Array

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the sources."""
        return self.base.files

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.base[int(self.indices[index])]

    @cached_property
    def lengths(self) -> Array:
        return self.base.lengths[self.indices]

    @property
    def rows(self) -> Array:
        return self.base.rows[self.indices]

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def media_items(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        places = {int(index): place for place, index in enumerate(self.indices)}
        return [(places[index], media) for index, media in self.base.media_items() if index in places]

    def source_sizes(self, count: int) -> list[int]:
        ends = np.searchsorted(self.indices, np.cumsum(self.base.source_sizes(count)))
        return [int(n) for n in np.diff(ends, prepend=0)]

    def fingerprint(self) -> str:
        chosen = np.ascontiguousarray(self.indices, index_dtype(len(self.base)))
        return hashlib.sha256(self.base.fingerprint().encode() + chosen.tobytes()).hexdigest()

    def foreign_id(self, vocab_size: int) -> tuple[str, int, Origin] | None:
        """See ``TokenizedDataset``; looks at the whole base."""
        return self.base.foreign_id(vocab_size)


def concatenate(parts: Sequence[ArrayDataset], files: Sequence[str]) -> ArrayDataset:
    """Datasets over the same ``files``, one after the other. Raises ``ValueError`` for different extra fields."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return DatasetBuilder(files).finish()
    names = parts[0].fields.keys()
    if any(p.fields.keys() != names for p in parts):
        raise ValueError("samples with different fields: an encoder gives every sample the same ones")
    offsets = np.cumsum([0, *(len(p) for p in parts)])
    plain = all(p.position_ids is None for p in parts)
    return ArrayDataset(
        starts=np.cumsum(np.concatenate([[0], *(p.lengths for p in parts)]), dtype=np.int64),
        input_ids=np.concatenate([p.input_ids for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
        position_ids=None if plain else np.concatenate([p.positions() for p in parts]),
        end_rows=None if plain else np.concatenate([p.bounds() for p in parts]),
        rows=np.concatenate([p.rows for p in parts]),
        lines=np.concatenate([p.lines for p in parts]),
        sources=np.concatenate([p.sources for p in parts]),
        files=tuple(files),
        fields={name: np.concatenate([p.fields[name] for p in parts]) for name in names},
        truncated={int(o) + i: why for o, p in zip(offsets, parts, strict=False) for i, why in p.truncated.items()},
        media={int(o) + i: found for o, p in zip(offsets, parts, strict=False) for i, found in p.media.items()},
        digests=tuple(digest for p in parts for digest in p.block_digests()),
    )


class DatasetBuilder:
    """Collects samples. ``files`` are the names of the sources, by number."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = tuple(files)
        self._parts: dict[str, list[Any]] = {"input_ids": [], "labels": [], "position_ids": [], "end_rows": []}
        self._fields: dict[str, list[Any]] = {}
        self._lengths: list[int] = []
        self._rows: list[int] = []
        self._lines: list[int] = []
        self._sources: list[int] = []
        self._truncated: dict[int, str] = {}
        self._media: dict[int, tuple[str, ...]] = {}
        self._plain = True

    def add(self, sample: Sample, row: int, source: int) -> None:
        """Append one sample. Raises ``ValueError`` when its extra fields differ from those of the first one."""
        n = len(sample)
        if self._lengths and sample.fields.keys() != self._fields.keys():
            raise ValueError(f"samples with different fields: {sorted(self._fields)} and {sorted(sample.fields)}")
        if self._plain:
            self._plain = bool((sample.end_rows == n).all()) and bool((sample.position_ids == np.arange(n)).all())
        for name, parts in self._parts.items():
            parts.append(np.asarray(getattr(sample, name), np.int32))
        for name, value in sample.fields.items():
            self._fields.setdefault(name, []).append(np.asarray(value))
        if sample.truncated:
            self._truncated[len(self._lengths)] = sample.truncated
        if sample.media:
            self._media[len(self._lengths)] = sample.media
        self._lengths.append(n)
        self._rows.append(row)
        self._lines.append(sample.origin.position)
        self._sources.append(source)

    def finish(self) -> ArrayDataset:
        """Concatenate the samples into one dataset."""
        joined = {name: _joined(parts) for name, parts in self._parts.items()}
        return ArrayDataset(
            starts=np.cumsum([0, *self._lengths], dtype=np.int64),
            input_ids=joined["input_ids"],
            labels=joined["labels"],
            position_ids=None if self._plain else joined["position_ids"],
            end_rows=None if self._plain else joined["end_rows"],
            rows=np.asarray(self._rows, np.int64),
            lines=np.asarray(self._lines, np.int32),
            sources=np.asarray(self._sources, np.int32),
            files=self._files,
            fields={name: np.concatenate(parts) for name, parts in self._fields.items()},
            truncated=dict(self._truncated),
            media=dict(self._media),
        )


def _joined(parts: Iterable[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *parts])
