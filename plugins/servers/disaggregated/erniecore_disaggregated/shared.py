"""Memory that processes of one machine share: files without a name, whose descriptors travel with messages and which are gone
with the last process that has them, however that ends. Images of a prompt lie in one, for all its completions and their tries.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from erniecore_generation.media import MediaSpan, PromptMedia
from numpy.typing import NDArray

from erniecore.api import Json

#: bytes at whose multiples arrays begin
_ALIGNMENT = 64


class Damaged(Exception):
    """What lies in a shared file is not what was described, or cannot be read."""


def shared_file(size: int) -> tuple[int, mmap.mmap]:
    """A descriptor of ``size`` bytes, all of them allocated, and these. Raises ``OSError`` where there is no room."""
    if sys.platform == "linux":
        file = os.memfd_create("erniecore", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    try:
        if sys.platform == "darwin":
            os.ftruncate(file, size)
        else:
            os.posix_fallocate(file, 0, size)
        return file, mmap.mmap(file, size)
    except BaseException:
        os.close(file)
        raise


class SharedMedia:
    """The images of a prompt in a shared file. Raises ``OSError`` where there is no room.

    Attributes:
        file: its descriptor. described: what :func:`read_media` needs besides. users: numbers of the requests that need it.
    """

    def __init__(self, media: PromptMedia) -> None:
        arrays, places, size = [np.ascontiguousarray(values) for values in media.arrays], [], 0
        for values in arrays:
            places.append(size)
            size += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.file, memory = shared_file(size)
        for values, place in zip(arrays, places, strict=True):
            memory[place : place + values.nbytes] = values.tobytes()
        self.described: Json = {
            "arrays": [[values.shape, values.dtype.name, place] for values, place in zip(arrays, places, strict=True)],
            "inputs": list(media.inputs), "spans": [[span.start, span.end, list(span.inputs)] for span in media.spans],
            "bytes": size, "checksum": zlib.crc32(memory),
        }  # fmt: skip
        memory.close()
        self.users: set[int] = set()

    def close(self) -> None:
        """The file stays for those who have it."""
        os.close(self.file)


def read_media(described: Json, file: int) -> PromptMedia:
    """The images of a :class:`SharedMedia` as views of its memory; ``file`` may be closed afterwards.

    Raises:
        Damaged: other bytes, or none that can be had.
    """
    try:
        memory = mmap.mmap(file, described["bytes"], prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise Damaged(f"the images of a prompt cannot be read: {error}") from error
    if zlib.crc32(memory) != described["checksum"]:
        raise Damaged("the checksum of images is wrong")

    def array(shape: list[int], dtype: str, place: int) -> NDArray[Any]:
        return np.frombuffer(memory, dtype, int(np.prod(shape)), place).reshape(shape)

    arrays = iter([array(*each) for each in described["arrays"]])
    positions = next(arrays)
    inputs = {name: next(arrays) for name in described["inputs"]}
    spans = [MediaSpan(start, end, {name: next(arrays) for name in names}) for start, end, names in described["spans"]]
    return PromptMedia(positions, inputs, tuple(spans))


class MediaFiles:
    """The shared files of all requests with images. A thread makes them, so that whoever asks does not wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "erniecore-media")
        self._lock = threading.Lock()
        self._files: dict[int, SharedMedia] = {}

    def __len__(self) -> int:
        """Files that are held."""
        return len(self._files)

    def share(self, number: int, media: PromptMedia, done: Callable[[str], None]) -> None:
        """Make the file for request ``number``; ``done`` is called in another thread, with what went wrong or nothing."""
        self._pool.submit(self._share, number, media, done)

    def _share(self, number: int, media: PromptMedia, done: Callable[[str], None]) -> None:
        try:
            found = self._files.get(id(media)) or SharedMedia(media)  # the object lives as long as a request has it
        except OSError as error:
            done(error.strerror or str(error))
            return
        with self._lock:
            self._files[id(media)] = found
            found.users.add(number)
        done("")

    def described(self, media: PromptMedia | None) -> tuple[Json | None, int]:
        """What a process needs to read the images of a request that were shared: a description and a descriptor, which whoever
        takes it closes; (None, -1) for no images. Raises ``OSError``."""
        if media is None:
            return None, -1
        found = self._files[id(media)]
        return found.described, os.dup(found.file)

    def release(self, number: int, media: PromptMedia) -> None:
        """Request ``number`` needs it no more; one that never had it may say so too."""
        with self._lock:
            found = self._files.get(id(media))
            if found is None or number not in found.users:
                return
            found.users.discard(number)
            if not found.users:
                del self._files[id(media)]
                found.close()

    def close(self) -> None:
        """No further files are made; those of requests stay."""
        self._pool.shutdown(wait=False, cancel_futures=True)
