"""Caches a teacher's top-k log-probabilities on disk. numpy only; plain .npy files, memory-mapped when they are read.

    DIR/<teacher and settings>/facts.json
                              /shard-<content>/{keys,sizes,ids,log_p,rest}.npy

A shard is a directory that is written atomically by a rename; what was not written when a process died is computed again. The
key of a sample is a hash of its ids, of the positions of its loss tokens, and of the paths and contents of its images, so it does
not depend on order, packing or run. Several processes may write to one cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from erniecore_system import mapped

from erniecore.api import CheckpointError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: bytes of new values that are kept in memory before they are written as a shard
SHARD_BYTES = 1 << 26
_FILES = ("keys", "sizes", "ids", "log_p", "rest")


class TopLogProbs(NamedTuple):
    """Of n positions: ids int32 [n, k], log-probabilities float32 [n, k], and that of all other tokens [n]."""

    ids: NDArray[np.int32]
    log_p: NDArray[np.float32]
    rest: NDArray[np.float32]


def key_of(input_ids: NDArray[Any], learned: NDArray[np.bool_], media: Sequence[str] = ()) -> bytes:
    """A key of 16 bytes for the ids of a sample, the positions of its loss tokens, and its ``Sample.media``."""
    text = hashlib.sha256(np.ascontiguousarray(input_ids, np.int64).tobytes())
    text.update(np.packbits(learned).tobytes())
    text.update("".join(f"\0{one}" for one in media).encode())
    return text.digest()[:16]


class Cache:
    """Top-k log-probabilities by sample.

    Args:
        home: ``method.cache``. facts: what the values depend on besides the samples: the teacher and the settings.

    Raises:
        CheckpointError: a shard cannot be read, or nothing can be written there.
    """

    def __init__(self, home: Path, facts: Mapping[str, Any]) -> None:
        text = json.dumps(dict(facts), sort_keys=True, indent=2)
        self.directory = home / hashlib.sha256(text.encode()).hexdigest()[:16]
        self.shards: dict[str, Mapping[str, NDArray[Any]]] = {}
        self.places: dict[bytes, tuple[str, int, int]] = {}
        self.new: dict[bytes, TopLogProbs] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / "facts.json").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise _unusable(self.directory, error) from error
        for path in sorted(self.directory.glob("shard-*")):
            self._open(path)

    def __len__(self) -> int:
        return len(self.places) + len(self.new)

    @property
    def num_bytes(self) -> int:
        """Size on disk, in bytes."""
        return sum(file.stat().st_size for file in self.directory.glob("shard-*/*.npy"))

    def get(self, key: bytes) -> TopLogProbs | None:
        """The cached values of a sample, if any."""
        if key in self.new:
            return self.new[key]
        if key not in self.places:
            return None
        name, start, end = self.places[key]
        return TopLogProbs(*(np.array(self.shards[name][part][start:end]) for part in _FILES[2:]))

    def add(self, key: bytes, values: TopLogProbs) -> None:
        """Add values; they are written once there are enough of them, or by :meth:`flush`."""
        self.new[key] = values
        if sum(a.ids.nbytes + a.log_p.nbytes + a.rest.nbytes for a in self.new.values()) >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all new values as one shard. Raises ``CheckpointError`` if that fails."""
        if not self.new:
            return
        keys, values = list(self.new), list(self.new.values())
        name = f"shard-{hashlib.sha256(b''.join(keys)).hexdigest()[:16]}"
        arrays: dict[str, NDArray[Any]] = {
            "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
            "sizes": np.array([len(a.rest) for a in values], np.int64),
            **{part: np.concatenate([getattr(a, part) for a in values]) for part in _FILES[2:]},
        }
        temporary = self.directory / f".{name}-{os.getpid()}"
        try:
            _write(temporary, arrays)
            if (self.directory / name).exists():  # another process had the same samples
                shutil.rmtree(temporary)
            else:
                temporary.rename(self.directory / name)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _unusable(self.directory, error) from error
        self.new.clear()
        self._open(self.directory / name)

    def _open(self, path: Path) -> None:
        try:
            arrays = {part: np.load(path / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in _FILES}
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(path, str(error)) from error
        for part, values in arrays.items():
            mapped.watch_values(values, partial(_cut, path, part))
        ends = np.cumsum(arrays["sizes"])
        total = int(ends[-1]) if len(ends) else 0
        if len(arrays["keys"]) != len(ends) or {len(arrays[part]) for part in _FILES[2:]} != {total}:
            raise _damaged(path, "files of different lengths")
        self.shards[path.name] = arrays
        for key, start, end in zip(arrays["keys"], ends - arrays["sizes"], ends, strict=True):
            self.places[key.tobytes()] = (path.name, int(start), int(end))


def _write(directory: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    directory.mkdir()
    for part, array in arrays.items():
        with (directory / f"{part}.npy").open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())


def _cut(path: Path, part: str, offset: int, size: int) -> CheckpointError:
    return _damaged(path, f"{part}.npy has {size} bytes now, and byte {offset} was in use")


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "a shard of the teacher's cache is damaged",
        where=str(path),
        found=found,
        fix="remove this directory; it will be rebuilt",
    )


def _unusable(directory: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        "the teacher's cache cannot be written",
        where=str(directory),
        found=str(error.strerror or error),
        fix="free space, or name another method.cache",
    )
