"""Writes indexed token files: both files appear under their names when all tokens are on the disk, the index last, or not
at all. What a document's tokens are is decided elsewhere (``building.py``).
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from erniecore.api import DataError, UsageError
from erniecore.api.corpus import codes, sync_directory
from erniecore_token_files.names import files_of
from erniecore_token_files.reading import DTYPES, HEADER, MAGIC, VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

#: vocabularies below it are stored in two bytes per token, as other writers of this layout do
_UINT16_BELOW = 65500
_CHUNK = 1 << 20


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 for vocabularies below 65,500 ids, else int32."""
    return DTYPES[8 if vocab_size < _UINT16_BELOW else 4]


class TokenFileWriter:
    """A context manager: ``add`` documents, then the files are there; after an exception they are not.

    Memory: 4 bytes per document.

    Args:
        prefix: of the pair; its directory is made. dtype: of the ids.

    Raises:
        UsageError: one of the two files exists.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self.prefix, self.dtype = prefix, dtype
        self.num_tokens = 0
        self._targets = files_of(prefix)
        self._temporary = tuple(t.with_name(f".{t.name}.{os.getpid()}.tmp") for t in self._targets)
        self._sizes = array("i")
        for target in self._targets:
            if target.exists():
                raise UsageError(
                    "the token file exists", where=str(target), fix="choose another --out, or delete the pair"
                )
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._stream: IO[bytes] = self._temporary[0].open("wb")

    @property
    def num_documents(self) -> int:
        """Number of documents added so far."""
        return len(self._sizes)

    def add(self, ids: NDArray[Any], lengths: IntArray) -> None:
        """Documents one after the other: their ids [T] and how many each has, int64 [D]; T is the sum of lengths.

        Raises:
            DataError: an id does not fit into the dtype.
        """
        if len(ids):
            limits = np.iinfo(self.dtype)
            low, high = int(ids.min()), int(ids.max())
            if low < max(limits.min, 0) or high > limits.max:
                raise DataError(
                    "a token id does not fit into the token file",
                    code=codes.ID_OUT_OF_RANGE,
                    where=str(self._targets[0]),
                    found=str(low if low < 0 else high),
                    expected=f"0 to {limits.max} ({self.dtype.name})",
                )
        self._stream.write(np.ascontiguousarray(ids, self.dtype).data)
        self._sizes.extend(int(n) for n in lengths)
        self.num_tokens += len(ids)

    def __enter__(self) -> TokenFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._stream.close()
            for path in self._temporary:
                path.unlink(missing_ok=True)

    def _finish(self) -> None:
        if not self.num_tokens:
            raise DataError("there is no token to write", code=codes.NOTHING_LEFT, where=str(self.prefix))
        _sync(self._stream)
        with self._temporary[1].open("wb") as stream:
            self._write_index(stream)
            _sync(stream)
        for temporary, target in zip(self._temporary, self._targets, strict=True):
            os.replace(temporary, target)
        sync_directory(self.prefix.parent)

    def _write_index(self, stream: IO[bytes]) -> None:
        number = self.num_documents
        code = next(code for code, dtype in DTYPES.items() if dtype == self.dtype)
        stream.write(HEADER.pack(MAGIC, VERSION, code, number, number + 1))
        sizes = np.frombuffer(self._sizes, np.int32)
        stream.write(sizes.astype("<i4").data)
        position = 0
        for start in range(0, number, _CHUNK):
            lengths = sizes[start : start + _CHUNK].astype(np.int64)
            ends = position + np.cumsum(lengths)
            stream.write(((ends - lengths) * self.dtype.itemsize).astype("<i8").data)
            position = int(ends[-1])
        for start in range(0, number + 1, _CHUNK):
            stream.write(np.arange(start, min(start + _CHUNK, number + 1), dtype="<i8").data)


def _sync(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())
