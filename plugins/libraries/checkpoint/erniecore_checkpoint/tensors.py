"""One tensor in or for a file: its dtype by safetensors name, its shape, and how to get its bytes.

Not an array library: numpy holds the data. bfloat16 and float8 have no numpy dtype of their own, so their bits
travel as uint16 and uint8 and ``Tensor.dtype`` says what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from erniecore_errors import CheckpointError
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: safetensors dtype -> little-endian numpy dtype that holds its bits
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(np.uint8),
    "F8_E5M2": np.dtype(np.uint8),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F64": np.dtype("<f8"),
}

#: numpy dtype name -> safetensors dtype of an array that comes without a tag; uint16 means bfloat16, as in Paddle
PLAIN: dict[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "float16": "F16",
    "uint16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}

#: safetensors dtype -> the name that config.json and Paddle use
LONG_NAMES: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}
#: the name that config.json and Paddle use -> safetensors dtype
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a safetensors dtype."""
    return prod(shape) * DTYPES[dtype].itemsize


def _nothing() -> None:
    """There is no memory to release."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor whose data is fetched when needed.

    Attributes:
        dtype: safetensors name, e.g. ``"BF16"``.
        shape: as stored.
        load: returns the numpy array (bits for BF16 and F8), of ``shape``; may be a read-only view of a file.
        release: its memory is not needed for now; a view of a file stays valid, and is read again where it is used.
    """

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    release: Callable[[], None] = _nothing

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.dtype, self.shape)

    @classmethod
    def of(cls, array: Array | Tensor, name: str = "") -> Tensor:
        """``array`` with its dtype said aloud; uint16 means bfloat16. Raises ``CheckpointError`` for other dtypes."""
        if isinstance(array, Tensor):
            return array
        dtype = PLAIN.get(array.dtype.name)
        if dtype is None:
            raise CheckpointError(
                "this dtype cannot be stored", where=name, found=str(array.dtype), expected=", ".join(PLAIN)
            )
        return cls(dtype, tuple(array.shape), lambda: array)


def contiguous_bytes(tensor: Tensor, name: str) -> memoryview:
    """The bytes of ``tensor`` in file order; checks that the data has the shape and dtype it claims."""
    array = tensor.load()
    expected = DTYPES[tensor.dtype]
    if tuple(array.shape) != tensor.shape or array.dtype.itemsize != expected.itemsize:
        raise CheckpointError(
            "the data of a tensor differs from what was announced",
            where=name,
            found=f"{array.dtype} {list(array.shape)}",
            expected=f"{tensor.dtype} {list(tensor.shape)}",
        )
    flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


#: safetensors dtype -> the bits of infinity, or of the first NaN where there is none; magnitudes below are finite
_INFINITE = {"F8_E4M3": 0x7F, "F8_E5M2": 0x7C, "F16": 0x7C00, "BF16": 0x7F80}


def all_finite(data: memoryview, dtype: str) -> bool:
    """Whether the bytes of a tensor hold neither NaN nor infinity."""
    if not len(data) or dtype not in (*_INFINITE, "F32", "F64"):
        return True
    values = np.frombuffer(data, DTYPES[dtype])
    if dtype in _INFINITE:
        size, limit = values.itemsize, _INFINITE[dtype]  # as signed numbers, the largest is one without a sign
        sign = 1 << 8 * size - 1
        return int(values.view(f"<i{size}").max()) < limit and int(values.view(f"<u{size}").max()) < sign + limit
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()))  # NaN is its own minimum and maximum


def same_bits(left: Array, right: Array) -> bool:
    """Whether two arrays of one shape hold the same bytes: NaN equals itself, and 0.0 is not -0.0."""
    return left.shape == right.shape and np.array_equal(_bytes(left), _bytes(right))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
