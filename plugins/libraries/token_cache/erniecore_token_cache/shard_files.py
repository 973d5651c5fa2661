"""One shard of tokenized samples as a file that proves itself whole: written once, under a temporary name until complete.

Layout, little-endian: the blocks (of each: all input ids, all labels, where not plain position ids and end rows, then the
further fields), the index (lengths, rows, lines: int32; reasons: uint16; one per sample), where samples have media the
byte at which each one's begin (int64, one per sample and the end) and these as JSON lists, a JSON description, its length
(uint64), and the sha256 of everything before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.api.files import parse_json
from erniecore.api.method import IGNORE

if TYPE_CHECKING:
    from erniecore.api.rows import ArrayDataset
    from erniecore.api.token_cache import Array

FORMAT = 1
_HASH, _LENGTH = 32, 8
#: name and dtype of the index, in file order
INDEX = (("lengths", "<i4"), ("rows", "<i4"), ("lines", "<i4"), ("reasons", "<u2"))


class Damaged(Exception):
    """A shard is not what was written; the text says how."""


class Block(NamedTuple):
    """Consecutive samples whose arrays lie together from byte ``offset`` on. ``ids`` and ``labels``: smallest and
    largest, IGNORE left out; ``digest``: as of ``ArrayDataset.block_digests``, in hexadecimal."""

    samples: int
    tokens: int
    offset: int
    plain: bool
    digest: str
    ids: tuple[int, int]
    labels: tuple[int, int]


@dataclass(frozen=True)
class Shard:
    """What is known of a shard without its tokens.

    Attributes:
        blocks: in order. fields: name -> (dtype, shape behind the token axis). reasons: texts by number, from 1 on.
        index: byte offset of each array of ``INDEX``. statistics: of its rows, as JSON. bytes, sha256: of the file.
        media: byte offsets of the places and of the lists of media, if there are any.
    """

    path: Path
    blocks: tuple[Block, ...]
    fields: Mapping[str, tuple[str, tuple[int, ...]]]
    reasons: tuple[str, ...]
    index: Mapping[str, int]
    num_samples: int
    statistics: Mapping[str, Any]
    bytes: int
    sha256: str
    media: tuple[int, int] | None = None

    def media_items(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The samples that have media: number in the shard, ``Sample.media``."""
        if self.media is None:
            return
        places = np.fromfile(self.path, "<i8", self.num_samples + 1, offset=self.media[0])
        with self.path.open("rb") as file:
            for i in np.flatnonzero(np.diff(places)).tolist():
                file.seek(self.media[1] + int(places[i]))
                yield i, tuple(json.loads(file.read(int(places[i + 1] - places[i]))))

    def read_index(self, name: str) -> Array:
        """One array of the index."""
        return np.fromfile(self.path, dict(INDEX)[name], self.num_samples, offset=self.index[name])


def _extremes(values: Array) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def _place(path: Path) -> str:
    """Where a shard belongs: its entry and number."""
    return f"{path.parent.name}/{path.stem}"


class ShardWriter:
    """Writes one shard. ``add`` blocks, then ``finish``, or ``discard``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._stream = self._temporary.open("wb")
        self._digest = hashlib.sha256()
        self._blocks: list[Block] = []
        self._index: dict[str, list[Array]] = {name: [] for name, _ in INDEX}
        self._reasons: dict[str, int] = {}
        self._media: list[bytes] = []  # one per sample
        self._fields: dict[str, tuple[str, tuple[int, ...]]] | None = None
        self._offset = 0

    def _write(self, data: Any) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self._offset += memoryview(data).nbytes

    def _write_columns(self, columns: Sequence[Array | None], dtype: str | None) -> None:
        for column in columns:
            if column is not None:
                self._write(np.ascontiguousarray(column, dtype).data)

    def add(self, dataset: ArrayDataset) -> None:
        """Append a block. Raises ``ValueError`` for other fields than those of the blocks before."""
        if not len(dataset):
            return
        fields = {name: (array.dtype.str, array.shape[1:]) for name, array in sorted(dataset.fields.items())}
        if self._fields not in (None, fields):
            raise ValueError(f"samples with different fields: {self._fields} and {fields}")
        self._fields = fields
        (digest,) = dataset.block_digests()
        ids, labels = _extremes(dataset.input_ids), _extremes(dataset.labels[dataset.labels != IGNORE])
        plain = dataset.position_ids is None
        self._blocks.append(Block(len(dataset), dataset.num_tokens, self._offset, plain, digest.hex(), ids, labels))
        columns: list[Array | None] = [dataset.input_ids, dataset.labels, dataset.position_ids, dataset.end_rows]
        self._write_columns(columns, "<i4")
        self._write_columns([dataset.fields[name] for name in fields], None)
        reasons = np.zeros(len(dataset), np.uint16)
        for i, why in dataset.truncated.items():
            reasons[i] = self._reasons.setdefault(why, len(self._reasons) + 1)
        texts = (dataset.media.get(i, ()) for i in range(len(dataset)))
        self._media += [json.dumps(media, ensure_ascii=False).encode() if media else b"" for media in texts]
        self._index["lengths"].append(dataset.lengths)
        self._index["rows"].append(dataset.rows)
        self._index["lines"].append(dataset.lines)
        self._index["reasons"].append(reasons)

    def finish(self, statistics: Mapping[str, Any]) -> Shard:
        """Complete the file, make it durable and give it its name."""
        places = {}
        for name, dtype in INDEX:
            places[name] = self._offset
            self._write(np.concatenate([np.zeros(0, dtype), *self._index[name]]).astype(dtype).data)
        media = self._write_media() if any(self._media) else None
        facts = {
            "format": FORMAT,
            "place": _place(self.path),
            "blocks": self._blocks,
            "fields": self._fields or {},
            "reasons": list(self._reasons),
            "index": places,
            "media": media,
            "samples": sum(block.samples for block in self._blocks),
            "account": statistics,
        }
        text = json.dumps(facts, ensure_ascii=False).encode()
        self._write(text)
        self._write(len(text).to_bytes(_LENGTH, "little"))
        self._stream.write(self._digest.digest())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        os.replace(self._temporary, self.path)
        return _parse(self.path, text, self._offset + _HASH, self._digest.hexdigest())

    def _write_media(self) -> tuple[int, int]:
        places = self._offset
        self._write(np.cumsum([0, *map(len, self._media)], dtype="<i8").data)
        texts = self._offset
        self._write(b"".join(self._media))
        return places, texts

    def discard(self) -> None:
        """Delete the unfinished file."""
        self._stream.close()
        self._temporary.unlink(missing_ok=True)


def open_shard(path: Path) -> Shard:
    """Read a shard's description, and all of the file to check it.

    Raises:
        Damaged: it is missing, cut off, changed, or of another format.
    """
    digest = hashlib.sha256()
    try:
        size = path.stat().st_size
        if size < _HASH + _LENGTH:
            raise Damaged(f"only {size} bytes")
        with path.open("rb", buffering=0) as stream:
            left = size - _HASH
            buffer = memoryview(bytearray(1 << 20))
            while left and (count := stream.readinto(buffer[: min(left, len(buffer))])):
                digest.update(buffer[:count])
                left -= count
            if stream.read(_HASH) != digest.digest():
                raise Damaged("its sha256 is another one")
            stream.seek(size - _HASH - _LENGTH)
            length = int.from_bytes(stream.read(_LENGTH), "little")
            stream.seek(size - _HASH - _LENGTH - length)
            text = stream.read(length)
    except FileNotFoundError as e:
        raise Damaged("it is missing") from e
    return _parse(path, text, size, digest.hexdigest())


def _parse(path: Path, text: bytes, size: int, sha256: str) -> Shard:
    facts = parse_json(text)
    if facts["format"] != FORMAT:
        raise Damaged(f"it has format {facts['format']}, not {FORMAT}")
    if facts["place"] != _place(path):
        raise Damaged(f"it is {facts['place']}")
    blocks = [
        Block(n, t, at, plain, d, tuple(ids), tuple(labels)) for n, t, at, plain, d, ids, labels in facts["blocks"]
    ]
    return Shard(
        path=path,
        blocks=tuple(blocks),
        fields={name: (dtype, tuple(shape)) for name, (dtype, shape) in facts["fields"].items()},
        reasons=tuple(facts["reasons"]),
        index=facts["index"],
        num_samples=facts["samples"],
        statistics=facts["account"],
        bytes=size,
        sha256=sha256,
        media=tuple(facts["media"]) if facts.get("media") else None,
    )
