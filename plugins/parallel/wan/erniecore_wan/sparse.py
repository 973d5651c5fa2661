"""SparseLoCo (arXiv 2508.15706): of each chunk of an update the ``k`` largest values travel, two bits each, and what does not
travel is kept for the next round.

e ← β·e + Δ;  Δ̂ = Q(TopK(e));  e ← e − Δ̂.

Two bits are a sign and one of two magnitudes. The magnitudes of a chunk are the means of the lower and the upper half of its
``k`` values by size, as float16: 32 bits a chunk. With chunks of 4096, k = 64 and 12-bit indices an update has
(64·14 + 32) / 4096 = 0.2266 bits per parameter, 141 times less than float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from erniecore_wan.arrays import AnyArray, Bytes, Vector

#: magnitudes per chunk, and bytes of each
_LEVELS, _LEVEL_BYTES = 2, 2


@dataclass(frozen=True, slots=True)
class Sparse:
    """How an update is made sparse.

    Attributes:
        k: values of each chunk. chunk: elements of a chunk, a power of two. rounding: two-bit values; else float32.
        decay: β of the error feedback.
    """

    k: int = 64
    chunk: int = 4096
    rounding: bool = True
    decay: float = 0.95

    @property
    def index_bits(self) -> int:
        """Bits of an index within a chunk."""
        return max(self.chunk - 1, 1).bit_length()

    def num_bytes(self, size: int) -> int:
        """Bytes of an update of ``size`` elements."""
        rows = -(-size // self.chunk)
        index = -(-rows * self.k * self.index_bits // 8)
        if not self.rounding:
            return index + rows * self.k * 4
        return index + -(-rows * self.k * 2 // 8) + rows * _LEVELS * _LEVEL_BYTES

    def bits_per_parameter(self, size: int) -> float:
        """Bits that travel for each of ``size`` parameters."""
        return 8 * self.num_bytes(size) / size


def compress(given: Vector, rule: Sparse) -> bytes:
    """The largest values of each chunk of ``given``, float32 [n], as :func:`expand` reads them."""
    rows = _rows(given, rule.chunk)
    width = min(rule.k, rule.chunk)
    order = np.argpartition(-np.abs(rows), width - 1, axis=1)[:, :width] if width < rule.chunk else None
    index = np.sort(order, axis=1) if order is not None else np.tile(np.arange(rule.chunk), (len(rows), 1))
    values = np.take_along_axis(rows, index, axis=1)
    packed = _pack(index, rule.index_bits)
    if not rule.rounding:
        return packed.tobytes() + values.astype("<f4").tobytes()
    levels, upper = _two_levels(np.abs(values))
    codes = (values < 0).astype(np.uint8) | (upper.astype(np.uint8) << 1)
    return packed.tobytes() + _pack(codes, 2).tobytes() + levels.astype("<f2").tobytes()


def expand(data: bytes, size: int, rule: Sparse) -> Vector:
    """The update float32 [size] that :func:`compress` made ``data`` of; zeros where nothing travelled.

    Raises:
        ValueError: ``data`` has another length, or an index beyond its chunk.
    """
    if len(data) != rule.num_bytes(size):
        raise ValueError(f"{len(data)} bytes instead of {rule.num_bytes(size)}")
    rows = -(-size // rule.chunk)
    count, raw = rows * rule.k, np.frombuffer(data, np.uint8)
    ends = np.cumsum([-(-count * rule.index_bits // 8), -(-count * 2 // 8)])
    index = _unpack(raw[: ends[0]], count, rule.index_bits).reshape(rows, rule.k)
    if index.size and int(index.max()) >= rule.chunk:
        raise ValueError(f"index {int(index.max())} in a chunk of {rule.chunk}")
    if rule.rounding:
        codes = _unpack(raw[ends[0] : ends[1]], count, 2).reshape(rows, rule.k)
        levels = np.frombuffer(data[ends[1] :], "<f2").astype(np.float32).reshape(rows, _LEVELS)
        values = np.take_along_axis(levels, (codes >> 1).astype(np.int64), axis=1)
        values = np.where(codes & 1, -values, values)
    else:
        values = np.frombuffer(data[ends[0] :], "<f4").astype(np.float32).reshape(rows, rule.k)
    full = np.zeros((rows, rule.chunk), np.float32)
    np.put_along_axis(full, index, values, axis=1)
    return full.reshape(-1)[:size]


def with_feedback(delta: Vector, error: Vector, rule: Sparse) -> tuple[bytes, Vector, Vector]:
    """The update that travels for ``delta``, as bytes and as others will read it, and the error that is left.

    Args:
        delta: float32 [n]. error: float32 [n], what earlier rounds have left.
    """
    wanted = np.float32(rule.decay) * error + delta
    data = compress(wanted, rule)
    sent = expand(data, len(wanted), rule)
    return data, sent, wanted - sent


def _rows(vector: Vector, chunk: int) -> Vector:
    """[ceil(n / chunk), chunk], zeros behind the end."""
    padded = np.zeros(-(-len(vector) // chunk) * chunk, np.float32)
    padded[: len(vector)] = vector
    return padded.reshape(-1, chunk)


def _two_levels(sizes: Vector) -> tuple[Vector, AnyArray]:
    """The means of the lower and the upper half of each row, [rows, 2], and which values are nearer to the upper."""
    ordered, half = np.sort(sizes, axis=1), sizes.shape[1] // 2
    upper = ordered[:, half:].mean(axis=1, dtype=np.float64)
    lower = ordered[:, :half].mean(axis=1, dtype=np.float64) if half else upper
    most = np.finfo(np.float16).max
    levels = np.minimum(np.stack([lower, upper], axis=1), most).astype(np.float16).astype(np.float32)
    return levels, sizes > levels.mean(axis=1, keepdims=True)


def _pack(values: AnyArray, bits: int) -> Bytes:
    """Numbers of so many bits, lowest bit first, without gaps."""
    each = (values.reshape(-1, 1) >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).reshape(-1), bitorder="little")


def _unpack(data: Bytes, count: int, bits: int) -> AnyArray:
    """The reverse of :func:`_pack`: int64 [count]."""
    each = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    return np.asarray((each.astype(np.int64) << np.arange(bits)).sum(axis=1))
