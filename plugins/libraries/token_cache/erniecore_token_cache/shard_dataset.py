"""Samples that lie on disk: a run holds twelve bytes per sample in memory and reads the tokens that a batch needs.

They are read with ``pread``, not mapped: pages of a map count as memory of the process until the system needs them for
others, and what a process costs should not depend on that. The system's page cache serves both alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.api import DataError
from erniecore.api.data import IGNORE, Origin, Sample, codes
from erniecore.api.token_cache import index_dtype
from erniecore_token_cache.shard_files import INDEX, Block, Shard

if TYPE_CHECKING:
    from erniecore.api.token_cache import Array

#: files that are held open
_MAX_OPEN = 256
_TOKEN = 4  # bytes


class Part(NamedTuple):
    """A shard and where it belongs: the number of its source, and the rows of all sources before that one."""

    shard: Shard
    source: int
    first_row: int


class _Place(NamedTuple):
    """A block, its part, and the number of its first sample and token over all parts; ``part_sample``: of the part."""

    block: Block
    part: Part
    sample: int
    token: int
    part_sample: int


class ShardDataset:
    """See ``erniecore.data.dataset.TokenizedDataset``.

    Args:
        parts: source after source, in order. files: names of the sources.
        keep: kept alive as long as the dataset (locks of the directories).

    Raises:
        ValueError: shards whose samples have different fields.
    """

    def __init__(self, parts: Sequence[Part], files: Sequence[str], keep: Sequence[Any] = ()) -> None:
        self.files = tuple(files)
        self._keep = tuple(keep)
        self._parts = [part for part in parts if part.shard.num_samples]
        self._fields = self._parts[0].shard.fields if self._parts else {}
        for part in self._parts:
            if part.shard.fields != self._fields:
                raise ValueError(f"samples with different fields: {self._fields} and {part.shard.fields}")
        self.lengths: Array = np.concatenate(
            [np.zeros(0, np.int32), *(part.shard.read_index("lengths").astype(np.int32) for part in self._parts)]
        )
        self._starts = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, dtype=np.int64, out=self._starts[1:])
        self._places = self._locate()
        self._firsts = [place.sample for place in self._places]
        self._open: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close, self._open)

    def _locate(self) -> list[_Place]:
        places, sample, token = [], 0, 0
        for part in self._parts:
            part_sample = sample
            for block in part.shard.blocks:
                places.append(_Place(block, part, sample, token, part_sample))
                sample, token = sample + block.samples, token + block.tokens
        return places

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return int(self._starts[-1])

    @property
    def num_bytes(self) -> int:
        """Size on disk, in bytes."""
        return sum(part.shard.bytes for part in self._parts)

    @property
    def rows(self) -> Array:
        """See ``TokenizedDataset``; read anew each time."""
        last = max((part.first_row for part in self._parts), default=0)
        dtype = index_dtype(last + 2**30)
        read = [part.shard.read_index("rows").astype(dtype) + dtype(part.first_row) for part in self._parts]
        return np.concatenate([np.zeros(0, dtype), *read])

    def source_sizes(self, count: int) -> list[int]:
        sizes = [0] * count
        for part in self._parts:
            sizes[part.source] += part.shard.num_samples
        return sizes

    def fingerprint(self) -> str:
        """See ``TokenizedDataset``: the same as of the same samples in memory."""
        return hashlib.sha256(b"".join(bytes.fromhex(place.block.digest) for place in self._places)).hexdigest()

    def foreign_id(self, vocab_size: int) -> tuple[str, int, Origin] | None:
        """See ``TokenizedDataset``; reads only blocks whose extremes are outside."""
        for what in ("token", "label"):
            for place in self._places:
                low, high = place.block.ids if what == "token" else place.block.labels
                if low >= 0 and high < vocab_size:
                    continue
                for i in range(place.sample, place.sample + place.block.samples):
                    sample = self[i]
                    ids = sample.input_ids if what == "token" else sample.labels[sample.labels != IGNORE]
                    bad = ids[(ids < 0) | (ids >= vocab_size)]
                    if len(bad):
                        return what, int(bad[0]), sample.origin
        return None

    # ---- one sample

    def __getitem__(self, index: int) -> Sample:
        place = self._places[bisect_right(self._firsts, index) - 1]
        n = int(self.lengths[index])
        token = int(self._starts[index]) - place.token
        columns = self._columns(place, token, n)
        plain = place.block.plain
        reason, line = (self._of_index(place, name, index) for name in ("reasons", "lines"))
        return Sample(
            input_ids=columns["input_ids"].astype(np.int64),
            labels=columns["labels"].astype(np.int64),
            position_ids=np.arange(n, dtype=np.int64) if plain else columns["position_ids"].astype(np.int64),
            end_rows=np.full(n, n, np.int32) if plain else columns["end_rows"].astype(np.int32),
            fields={name: columns[name] for name in self._fields},
            truncated=place.part.shard.reasons[reason - 1] if reason else "",
            origin=Origin(self.files[place.part.source], line),
            media=self._media(place, index),
        )

    def media_items(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """See ``TokenizedDataset``; read from the disk."""
        first = 0
        for part in self._parts:
            yield from ((first + i, media) for i, media in part.shard.media_items())
            first += part.shard.num_samples

    def _media(self, place: _Place, index: int) -> tuple[str, ...]:
        shard = place.part.shard
        if shard.media is None:
            return ()
        at = shard.media[0] + (index - place.part_sample) * 8
        start, end = np.frombuffer(self._read(shard.path, 16, at), "<i8").tolist()
        return tuple(json.loads(self._read(shard.path, end - start, shard.media[1] + start))) if end > start else ()

    def _columns(self, place: _Place, token: int, n: int) -> dict[str, Array]:
        """Every array of ``n`` tokens from ``token`` of the block on."""
        names = ("input_ids", "labels") if place.block.plain else ("input_ids", "labels", "position_ids", "end_rows")
        columns = [(name, "<i4", ()) for name in names]
        columns += [(name, dtype, shape) for name, (dtype, shape) in self._fields.items()]  # type: ignore[misc]
        offset, out = place.block.offset, {}
        for name, dtype, shape in columns:
            size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
            data = self._read(place.part.shard.path, n * size, offset + token * size)
            out[name] = np.frombuffer(data, dtype).reshape(n, *shape)
            offset += place.block.tokens * size
        return out

    def _of_index(self, place: _Place, name: str, index: int) -> int:
        dtype = np.dtype(dict(INDEX)[name])
        at = place.part.shard.index[name] + (index - place.part_sample) * dtype.itemsize
        return int(np.frombuffer(self._read(place.part.shard.path, dtype.itemsize, at), dtype)[0])

    def _read(self, path: Path, count: int, offset: int) -> bytes:
        fd = self._open.get(path)
        try:
            if fd is None:
                fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if len(self._open) > _MAX_OPEN:
                    os.close(self._open.popitem(last=False)[1])
            data = os.pread(fd, count, offset)
        except OSError as e:
            raise _lost(path, e.strerror or str(e)) from e
        if len(data) != count:
            raise _lost(path, f"{len(data)} bytes at {offset}, {count} expected")
        return data


def _lost(path: Path, found: str) -> DataError:
    return DataError(
        "a file of the token cache is gone or was changed while a run used it",
        code=codes.CACHE_LOST,
        where=str(path),
        found=found,
        fix="start the same command again: it makes the file anew and continues from the newest checkpoint",
    )


def _close(files: OrderedDict[Path, int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()
