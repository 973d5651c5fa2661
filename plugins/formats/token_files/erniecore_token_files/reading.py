"""Indexed token files, read-only and memory-mapped: the pair ``PREFIX.bin`` (ids, one after the other) and ``PREFIX.idx``.

The layout is the one that Megatron-LM, PaddleFormers and ERNIEKit write: magic, version, dtype code, counts, the length
and byte offset of every sequence, and the index of the first sequence of every document (little-endian). Nothing is
copied into memory: a search reads a few entries of the index. Writing is ``writing.py``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_system import mapped

from erniecore.api import DataError
from erniecore.api.corpus import codes
from erniecore_token_files.names import files_of, prefix_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    IntArray = NDArray[np.int64]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
#: magic, version, dtype code, number of sequences, entries of the document index
HEADER = struct.Struct("<9sQBQQ")
#: dtype code -> dtype; 6 and 7 are floats of either size, depending on the writer, and never hold tokens
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
#: entries of the index that are checked at a time
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class TokenFile:
    """One pair. Positions count tokens from the start of ``.bin``.

    Attributes:
        prefix: both names without their endings.
        tokens: ids [T], in the file's dtype. ``num_documents``: how many documents they form.
    """

    prefix: Path
    tokens: NDArray[Any]
    _pointers: IntArray  # int64 [N], byte offset of each sequence
    _documents: IntArray  # int64 [D + 1], first sequence of each document, then N

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the file."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return len(self._documents) - 1

    def start(self, document: int) -> int:
        """Position of the first token of a document; ``num_tokens`` for the one behind the last."""
        sequence = int(self._documents[document])
        return int(self._pointers[sequence]) // self._width if sequence < len(self._pointers) else self.num_tokens

    def document(self, position: int) -> int:
        """Index of the document that holds a token."""
        sequence = bisect_right(self._pointers, position * self._width) - 1
        return bisect_right(self._documents, sequence) - 1

    def starts_within(self, start: int, stop: int) -> IntArray:
        """Where documents begin at start < position < stop; int64, rising, each once."""
        first = bisect_left(self._pointers, (start + 1) * self._width)
        last = bisect_left(self._pointers, stop * self._width)
        low, high = bisect_left(self._documents, first), bisect_left(self._documents, last)
        return np.unique(self._pointers[self._documents[low:high]] // self._width).astype(np.int64)

    @property
    def _width(self) -> int:
        return int(self.tokens.dtype.itemsize)

    def check_ids(self, vocab_size: int, *, limit: int = 1 << 28) -> None:
        """Look at the first ``limit`` tokens; later ones are checked where they are used.

        Raises:
            DataError: an id is negative or not below ``vocab_size``.
        """
        for start in range(0, min(self.num_tokens, limit), _CHUNK * 16):
            part = self.tokens[start : start + _CHUNK * 16]
            if int(part.min()) < 0 or int(part.max()) >= vocab_size:
                at = start + int(((part < 0) | (part >= vocab_size)).argmax())
                raise DataError(
                    "a token id is outside of the model's vocabulary",
                    where=f"{files_of(self.prefix)[0]}: document {self.document(at) + 1}, token {at}",
                    found=str(int(self.tokens[at])),
                    expected=f"ids below {vocab_size} (vocab_size of the model)",
                    fix="build the token files with the tokenizer that belongs to this model",
                    code=codes.ID_OUT_OF_RANGE,
                )


def open_token_file(path: str | Path) -> TokenFile:
    """Open and check a pair: the index in full, of the tokens only their number.

    Raises:
        DataError: a file is missing, is no token file, has another version or dtype, or the two do not fit together.
    """
    prefix = prefix_of(path)
    if prefix is None:
        raise _missing(*files_of(Path(path))[::-1])
    tokens_path, index_path = files_of(prefix)
    for this, other in ((tokens_path, index_path), (index_path, tokens_path)):
        if not this.is_file():
            raise _missing(this, other)
    dtype, num_sequences, num_entries = _header(index_path)
    sizes_at = HEADER.size
    pointers_at = sizes_at + 4 * num_sequences
    documents_at = pointers_at + 8 * num_sequences
    _check_size(index_path, documents_at + 8 * num_entries, f"{num_sequences} sequences, {num_entries - 1} documents")
    sizes = _map(index_path, "<i4", sizes_at, num_sequences)
    pointers = _map(index_path, "<i8", pointers_at, num_sequences)
    documents = _map(index_path, "<i8", documents_at, num_entries)
    num_tokens = _check_sequences(index_path, sizes, pointers, dtype.itemsize)
    _check_documents(index_path, documents, num_sequences)
    _check_size(tokens_path, num_tokens * dtype.itemsize, f"{num_tokens} tokens of {dtype.itemsize} bytes")
    return TokenFile(prefix, _map(tokens_path, dtype, 0, num_tokens), pointers, documents)


def _map(path: Path, dtype: DTypeLike, at: int, count: int) -> NDArray[Any]:
    """``count`` values at byte ``at`` of ``path``; a file that is cut while it is mapped ends the process with an error."""
    values = np.memmap(path, dtype, "r", at, (count,))
    mapped.watch_values(values, partial(_cut, path, at + values.nbytes))
    return values


def _cut(path: Path, end: int, offset: int, size: int) -> DataError:
    if size >= end:
        return _damaged(
            path, "the disk does not give what this file has", f"byte {offset} cannot be read", f"{size} bytes"
        )
    return _damaged(path, "the file was truncated while it was in use", f"{size} bytes", f"{end} bytes")


def _missing(path: Path, other: Path) -> DataError:
    return DataError(
        "a token file is missing",
        code=codes.MISSING_FILE,
        where=str(path),
        expected=f"{path.name} beside {other.name}",
        fix="give the prefix of a pair PREFIX.bin and PREFIX.idx, as `ernie data build` writes it",
    )


def _header(path: Path) -> tuple[np.dtype[Any], int, int]:
    """(dtype, number of sequences, entries of the document index)."""
    with path.open("rb") as stream:
        start = stream.read(HEADER.size)
    if not start.startswith(MAGIC):
        raise DataError(
            "this is no index of a token file",
            code=codes.NO_TOKEN_FILE,
            where=str(path),
            found=repr(start[: len(MAGIC)]),
            expected=repr(MAGIC),
            fix="build it with `ernie data build`",
        )
    if len(start) < HEADER.size:
        raise _damaged(path, "the index ends within its header", f"{len(start)} bytes", f"{HEADER.size} bytes")
    _, version, dtype_code, num_sequences, num_entries = HEADER.unpack(start)
    if version != VERSION:
        raise DataError(
            "this version of token files is not known",
            code=codes.NO_TOKEN_FILE,
            where=str(path),
            found=str(version),
            expected=str(VERSION),
        )
    if dtype_code not in DTYPES:
        raise DataError(
            "token ids cannot have this dtype",
            code=codes.TOKEN_DTYPE,
            where=str(path),
            found=f"dtype code {dtype_code}",
            expected=", ".join(f"{code} ({dtype.name})" for code, dtype in DTYPES.items()),
        )
    if not num_sequences or not num_entries:
        raise DataError("the token file holds no tokens", code=codes.EMPTY_FILE, where=str(path))
    return DTYPES[dtype_code], num_sequences, num_entries


def _check_size(path: Path, expected: int, what: str) -> None:
    found = path.stat().st_size
    if found != expected:
        raise _damaged(
            path,
            "the file ends early" if found < expected else "the file is longer than its index says",
            f"{found} bytes",
            f"{expected} bytes ({what})",
        )


def _check_sequences(path: Path, sizes: NDArray[np.int32], pointers: IntArray, width: int) -> int:
    """That sequences lie one behind the other; returns the number of tokens."""
    position = 0
    for start in range(0, len(sizes), _CHUNK):
        part = np.asarray(sizes[start : start + _CHUNK], np.int64)
        if (part < 0).any():
            raise _damaged(path, "a sequence has a negative length", str(int(part.min())), "lengths of at least 0")
        ends = position + np.cumsum(part)
        expected = (ends - part) * width
        wrong = np.flatnonzero(pointers[start : start + _CHUNK] != expected)
        if len(wrong):
            at = int(wrong[0])
            found = f"sequence {start + at} at byte {int(pointers[start + at])}"
            raise _damaged(path, "the sequences are not one behind the other", found, f"byte {int(expected[at])}")
        position = int(ends[-1])
    if not position:
        raise DataError("the token file holds no tokens", code=codes.EMPTY_FILE, where=str(path))
    return position


def _check_documents(path: Path, documents: IntArray, num_sequences: int) -> None:
    first, last = int(documents[0]), int(documents[-1])
    if (first, last) != (0, num_sequences):
        expected = f"from 0 to {num_sequences} (the number of sequences)"
        raise _damaged(path, "the document index does not cover the sequences", f"from {first} to {last}", expected)
    for start in range(0, len(documents), _CHUNK):
        if (np.diff(documents[start : start + _CHUNK + 1]) < 0).any():
            raise _damaged(
                path, "the document index goes back", "a smaller entry behind a larger one", "rising entries"
            )


def _damaged(path: Path, message: str, found: str, expected: str) -> DataError:
    return DataError(
        message,
        code=codes.TOKEN_FILE_DAMAGED,
        where=str(path),
        found=found,
        expected=expected,
        fix="copy or build the pair again",
    )
