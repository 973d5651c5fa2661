"""Reading safetensors files that nobody vouches for: everything the header claims is checked before it is used.

The library checks most of this too, but says neither which file nor which tensor is wrong. Tensors are views of the
mapped file, so memory use stays that of the tensors in use. Pickles are recognized and refused, never opened.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_errors import CheckpointError, shorten
from erniecore_system import mapped
from erniecore_system.files import open_file

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.tensors import DTYPES, Array, Tensor

#: a header larger than this is an attack or damage, not a model
MAX_HEADER_BYTES = 100 * 1000 * 1000

_PICKLE_SUFFIXES = frozenset({".pdparams", ".pdopt", ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
#: zip (torch), and the protocol marks of pickles 2 to 5
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the header says of one tensor; ``begin`` and ``end`` are offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: tensors by name in the order of their bytes, and the file's metadata."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def damaged(path: Path, message: str, tensor: str = "", **parts: str) -> CheckpointError:
    """The error for a damaged file: names the file and, when there is one, the tensor."""
    where = f"{path}: {tensor}" if tensor else str(path)
    return CheckpointError(message, where=where, code="ERN-K002", **parts)


def refuse_pickle(path: Path) -> None:
    """Raise ``CheckpointError`` with a conversion hint when ``path`` is a pickle by name or by content.

    Unpickling runs whatever code the file holds; only the first bytes are looked at here.
    """
    suffix = path.suffix.lower()
    with translated(path, "reading weights"), open_file(path) as file:
        start = file.read(9)
    # a header of 640 bytes also begins with 80 02, so ask first whether this can be a safetensors file
    plausible = len(start) == 9 and struct.unpack("<Q", start[:8])[0] <= MAX_HEADER_BYTES and start[8:] == b"{"
    if suffix in _PICKLE_SUFFIXES or (start.startswith(_PICKLE_STARTS) and not plausible):
        raise CheckpointError(
            "this is a pickle, which can run code when it is opened; only safetensors files are read",
            where=str(path),
            expected="a .safetensors file",
            fix="get the model's safetensors release, or convert the file in a throw-away environment that you trust "
            "(load it with the library that wrote it, then safetensors.numpy.save_file)",
            code="ERN-K010",
        )


def read_header(path: Path) -> Header:
    """The header of ``path``, checked: size, JSON, names, dtypes, shapes, offsets in bounds, no overlap, no gap.

    Raises:
        CheckpointError: names the file and the tensor; also for pickles.
    """
    refuse_pickle(path)
    with translated(path, "reading weights"), open_file(path) as file:
        size = path.stat().st_size
        start = file.read(8)
        if len(start) < 8:
            raise damaged(path, "the file is truncated", found=f"{size} bytes", expected="at least 8 bytes")
        (length,) = struct.unpack("<Q", start)
        if length > MAX_HEADER_BYTES:
            raise damaged(path, "the header length is impossible", found=str(length), expected="at most 100 MB")
        if 8 + length > size:
            raise damaged(
                path, "the file is truncated inside its header", found=f"{size} bytes", expected=f"{8 + length} or more"
            )
        raw = file.read(length)
    return _check_header(path, _parse(path, raw), 8 + length, size)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise damaged(path, "the header names something twice", tensor=key)
            result[key] = value
        return result

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "the header is not JSON", found=shorten(raw[:40])) from error
    if not isinstance(header, dict):
        raise damaged(path, "the header is not a JSON object", found=type(header).__name__)
    return header


def _check_header(path: Path, header: dict[str, Any], base: int, size: int) -> Header:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise damaged(path, "`__metadata__` must map text to text", found=shorten(metadata))
    infos = {name: _tensor_info(path, name, entry, base) for name, entry in header.items()}
    ordered = dict(sorted(infos.items(), key=lambda item: (item[1].begin, item[1].end)))
    position, previous = base, ""
    for name, info in ordered.items():
        if info.end > size:
            raise damaged(path, "the file is truncated", name, found=f"{size} bytes", expected=f"{info.end} bytes")
        if info.begin < position:
            raise damaged(path, f"the bytes of this tensor overlap those of {previous}", name)
        if info.begin > position:
            raise damaged(path, f"{info.begin - position} bytes before this tensor belong to none", name)
        position, previous = info.end, name
    if position != size:
        raise damaged(path, f"{size - position} bytes at the end belong to no tensor", previous)
    return Header(ordered, metadata)


def _tensor_info(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, "the header needs dtype, shape and data_offsets here", name, found=shorten(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise damaged(path, "unknown dtype", name, found=shorten(dtype), expected=", ".join(DTYPES))
    if not _naturals(shape):
        raise damaged(path, "the shape is not a list of sizes", name, found=shorten(shape))
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise damaged(path, "the offsets are not [begin, end]", name, found=shorten(offsets))
    expected = prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != expected:
        raise damaged(
            path,
            "the offsets do not span the tensor's shape and dtype",
            name,
            found=f"{offsets[1] - offsets[0]} bytes",
            expected=f"{expected} bytes for {dtype} {shape}",
        )
    return TensorInfo(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _naturals(value: Any) -> bool:
    # bool is an int in Python; true is not a size
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def open_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of ``path`` as lazy, read-only views of the mapped file; no tensor is read yet.

    Raises:
        CheckpointError: the file is damaged, or a pickle.
    """
    header = read_header(path)
    with translated(path, "reading weights"), open_file(path) as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    mapped.watch(memory, address, partial(_unreadable, path, header))
    return {
        name: Tensor(
            info.dtype,
            info.shape,
            partial(_view, path, name, memory, info),
            partial(_release, path, name, memory, info),
        )
        for name, info in header.tensors.items()
    }


def _unreadable(path: Path, header: Header, offset: int, size: int) -> CheckpointError:
    """The error of a byte that cannot be read any more in a file of now ``size`` bytes."""
    touched = ((name, info) for name, info in header.tensors.items() if info.end > offset)
    name, info = next(touched, ("", TensorInfo("U8", (), 0, offset)))
    if size >= info.end:
        found = f"{size} bytes, of which byte {offset} cannot be read"
        return CheckpointError(
            "the disk does not give what this file has", where=f"{path}: {name}", found=found, code="ERN-K003"
        )
    return _cut(path, name, info, size)


def _cut(path: Path, name: str, info: TensorInfo, size: int) -> CheckpointError:
    message, fix = "the file was truncated while it was in use", "put the file back, and run the same command again"
    return damaged(path, message, name, found=f"{size} bytes", expected=f"{info.end} bytes", fix=fix)


def _release(path: Path, name: str, memory: mmap.mmap, info: TensorInfo) -> None:
    """Take the pages of a tensor out of this process's memory. What was cut within a page was read as zeros: an error."""
    if (size := memory.size()) < info.end:
        raise _cut(path, name, info, size)
    begin, end = -(-info.begin // mmap.PAGESIZE) * mmap.PAGESIZE, info.end // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _view(path: Path, name: str, memory: mmap.mmap, info: TensorInfo) -> Array:
    mapped.arm()
    if (size := memory.size()) < info.end:  # touching what is gone ends the process
        raise _cut(path, name, info, size)
    dtype, count = DTYPES[info.dtype], prod(info.shape)
    if count == 0:
        return np.zeros(info.shape, dtype)
    return np.frombuffer(memory, dtype=dtype, count=count, offset=info.begin).reshape(info.shape)


def merge_shards(paths: Iterable[Path]) -> dict[str, tuple[Path, Tensor]]:
    """All tensors of several files with the file of each; a name in two files is an error naming both."""
    merged: dict[str, tuple[Path, Tensor]] = {}
    for path in paths:
        for name, tensor in open_tensors(path).items():
            if name in merged:
                raise damaged(path, f"this tensor is also in {merged[name][0].name}", name)
            merged[name] = (path, tensor)
    return merged
