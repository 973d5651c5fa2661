"""Writing safetensors files tensor by tensor: sharded by size, hashed while written, on the disk when done.

The library can only write a whole file from memory, without hashes and without fsync; the format is small: eight
bytes of header length, a JSON header, the bytes of the tensors. What is written here the library reads (tested).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from erniecore_errors import CheckpointError, NumericsError
from erniecore_system.durable import write_all

from erniecore_checkpoint.tensors import DTYPES, Array, Tensor, all_finite, contiguous_bytes, num_bytes

#: shards of public model directories have this size unless the user says otherwise
DEFAULT_SHARD_BYTES = 5 * 1000**3
#: bytes that are written and hashed at the same time
_LARGE = 1 << 20
SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor as it lies in a file; ``begin`` and ``end`` are offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file as it was written: size, hash, and its tensors.

    ``by_tensor``: the hash is that of the header and of the tensors' hashes, sorted by name, so that every byte is hashed
    once, not twice.
    """

    name: str
    num_bytes: int
    sha256: str
    tensors: dict[str, WrittenTensor] = field(default_factory=dict)
    by_tensor: bool = False


def file_order(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Names as they lie in a file, wide dtypes first: readers map it, so every tensor must start at a multiple of its item
    size."""
    return sorted(shapes, key=lambda name: -DTYPES[shapes[name][0]].itemsize)


class SafetensorsFile:
    """A new file that is written tensor by tensor, hashed on the way, and on the disk once :meth:`finish` returns.

    ``OSError`` is left to the caller, who knows what the failure means.

    Args:
        path: must not exist yet. shapes: name -> (dtype, shape) of everything that will be in it.
        by_tensor: see :class:`WrittenFile`. finite: refuse infinite values and NaN (``NumericsError``).
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        by_tensor: bool = False,
        finite: bool = True,
    ) -> None:
        self._by_tensor, self._finite = by_tensor, finite
        if "__metadata__" in shapes:
            raise CheckpointError("no tensor can have the name __metadata__", where=str(path))
        #: names in the order in which :meth:`add` wants them
        self.order = file_order(shapes)
        self.path = path
        header, self._offsets = _header([(name, *shapes[name]) for name in self.order])
        self._base, self._total, self._written = len(header), hashlib.sha256(header), dict[str, WrittenTensor]()
        self._in_order = True
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            write_all(self._fd, header)
        except BaseException:
            self.close()
            raise

    def add(self, name: str, tensor: Tensor) -> None:
        """The next tensor of ``order``, or any other: then :meth:`finish` reads the file once more for its hash."""
        self._in_order = self._in_order and name == self.order[len(self._written)]
        data = contiguous_bytes(tensor, name)
        if self._finite and not all_finite(data, tensor.dtype):
            raise NumericsError(
                "this tensor holds values that are not finite; the file is not kept",
                where=name,
                fix="lower train.learning_rate, or use an earlier checkpoint",
            )
        begin, end = self._offsets[name]
        os.lseek(self._fd, self._base + begin, os.SEEK_SET)
        own = hashlib.sha256()
        todo: list[Callable[[memoryview], None]] = [partial(write_all, self._fd), own.update]
        todo += [self._total.update] if not self._by_tensor and self._in_order else []
        with ThreadPoolExecutor(len(todo)) if len(data) >= _LARGE else nullcontext() as threads:
            list((threads.map if threads else map)(lambda do: do(data), todo))
        self._written[name] = WrittenTensor(
            tensor.dtype, tensor.shape, self._base + begin, self._base + end, own.hexdigest()
        )

    def finish(self) -> WrittenFile:
        """Onto the disk; size and sha256 of the file and of every tensor."""
        assert len(self._written) == len(self.order)
        try:
            os.fsync(self._fd)
            size = os.fstat(self._fd).st_size
        finally:
            self.close()
        if not self._in_order and not self._by_tensor:
            return WrittenFile(self.path.name, size, _read_back(self.path, self._base, self._written), self._written)
        if self._by_tensor:
            for name in sorted(self._written):
                self._total.update(self._written[name].sha256.encode())
        return WrittenFile(self.path.name, size, self._total.hexdigest(), self._written, self._by_tensor)

    def close(self) -> None:
        """Also of a file that is not complete; twice is once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _read_back(path: Path, base: int, tensors: Mapping[str, WrittenTensor]) -> str:
    """sha256 of the file, whose header ends at ``base``. Raises ``CheckpointError`` for a tensor that is not what was written."""
    ordered = sorted(tensors.items(), key=lambda item: item[1].begin)
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1) as threads:
        total = hashlib.sha256(file.read(base))
        for name, tensor in ordered:
            own, left = hashlib.sha256(), tensor.end - tensor.begin
            while left and (block := file.read(min(left, 1 << 22))):
                hashed = threads.submit(own.update, block)
                total.update(block)
                hashed.result()
                left -= len(block)
            if own.hexdigest() != tensor.sha256:
                raise CheckpointError("the disk returns other bytes than were written", where=f"{path}: {name}")
    return total.hexdigest()


def write_safetensors(
    path: Path, tensors: Mapping[str, Array | Tensor], *, by_tensor: bool = False, finite: bool = True
) -> WrittenFile:
    """Write ``tensors`` in the order given, wide dtypes first, and fsync the file; see :class:`SafetensorsFile`.

    One tensor is in memory at a time beyond what the caller holds.
    """
    items = {name: Tensor.of(tensor, name) for name, tensor in tensors.items()}
    file = SafetensorsFile(
        path, {name: (tensor.dtype, tensor.shape) for name, tensor in items.items()}, by_tensor=by_tensor, finite=finite
    )
    try:
        for name in file.order:
            file.add(name, items[name])
        return file.finish()
    finally:
        file.close()


def _header(ordered: list[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header of (name, dtype, shape), and where each tensor lies behind it."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, tuple[int, int]] = {}
    position = 0
    for name, dtype, shape in ordered:
        end = position + num_bytes(dtype, shape)
        offsets[name] = (position, end)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, offsets


def split_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names in order, cut into runs of at most ``max_bytes`` (a tensor larger than that is alone in its shard)."""
    if max_bytes < 1:
        raise ValueError(f"max_bytes must be at least 1, got {max_bytes}")
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def write_shards(
    directory: Path, stem: str, tensors: Mapping[str, Array | Tensor], max_bytes: int, *, by_tensor: bool = False
) -> list[WrittenFile]:
    """Write ``tensors`` into as many files ``<stem>-00001-of-0000n.safetensors`` as their size needs."""
    items = {name: Tensor.of(tensor, name) for name, tensor in tensors.items()}
    return [
        write_safetensors(directory / file, {name: items[name] for name in names}, by_tensor=by_tensor)
        for file, names in shard_files(items, stem, max_bytes)
    ]


def shard_files(tensors: Mapping[str, Tensor], stem: str, max_bytes: int) -> list[tuple[str, list[str]]]:
    """File -> names of what is in it; see :func:`split_shards`."""
    shards = split_shards({name: tensor.num_bytes for name, tensor in tensors.items()}, max_bytes)
    return [(f"{stem}-{n:05d}-of-{len(shards):05d}.safetensors", names) for n, names in enumerate(shards, 1)]


def index_json(files: list[WrittenFile]) -> dict[str, object]:
    """The content of ``model.safetensors.index.json``: total size, and the file of each tensor."""
    weight_map = {name: file.name for file in files for name in file.tensors}
    total = sum(t.end - t.begin for file in files for t in file.tensors.values())
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
