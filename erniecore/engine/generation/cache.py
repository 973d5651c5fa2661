"""Keys and values of past positions in buffers of fixed size, for decoding one token at a time.

Grouped-query aware: it stores key/value heads as the layers make them and never repeats them. It is not a
paged cache: one contiguous buffer per layer. Letters: B rows, S new positions, K stored positions, N
key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from numpy.typing import NDArray

from erniecore.errors import UsageError


class StaticCache:
    """Implements ``Cache`` over buffers [B, capacity, N, D] that are allocated on first use, with the key's dtype.

    Args:
        layers: number of layers that will call :meth:`update`.
        capacity: the most positions that a row can hold.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity = capacity
        #: positions that every layer has stored
        self.length = 0
        self._stored = [0] * layers
        self._keys: list[paddle.Tensor | None] = [None] * layers
        self._values: list[paddle.Tensor | None] = [None] * layers

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self, layer: int, key: paddle.Tensor, value: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Append [B, S, N, D] in place; all keys and values so far as views [B, K, N, D], without a copy.

        Raises:
            UsageError: the positions do not fit, or the batch is not the one that the cache was made for.
        """
        start = self._stored[layer]
        end = start + key.shape[1]
        if end > self.capacity:
            raise UsageError("the cache is full", found=f"{end} positions", expected=f"at most {self.capacity}")
        keys = self._write(self._keys, layer, key, start, end)
        values = self._write(self._values, layer, value, start, end)
        self._stored[layer] = end
        self.length = min(self._stored)
        return keys[:, :end], values[:, :end]

    def _write(
        self, buffers: list[paddle.Tensor | None], layer: int, new: paddle.Tensor, start: int, end: int
    ) -> paddle.Tensor:
        buffer = buffers[layer]
        if buffer is None:
            batch, _, heads, size = new.shape
            buffer = buffers[layer] = paddle.zeros([batch, self.capacity, heads, size], dtype=new.dtype)
        if buffer.shape[0] != new.shape[0]:
            raise UsageError(
                "the cache holds another batch", found=f"{new.shape[0]} rows", expected=f"{buffer.shape[0]}"
            )
        buffer[:, start:end] = new
        return buffer

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order (a row may be taken twice)."""
        index = paddle.to_tensor(list(rows), dtype="int64")
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                if buffer is not None:
                    buffers[layer] = paddle.index_select(buffer, index, axis=0)

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on."""
        self._stored = [min(stored, length) for stored in self._stored]
        self.length = min(self._stored)

    @classmethod
    def packed(
        cls, parts: Sequence[tuple[StaticCache, NDArray[np.int64], NDArray[np.int64]]], capacity: int
    ) -> StaticCache:
        """A new cache of chosen positions: of each (cache, rows [b], columns [b, K]) row i of the part becomes a row with
        the positions (rows[i], columns[i]) of that cache. K is the same in all parts."""
        first, rows = parts[0][0], sum(len(rows) for _, rows, _ in parts)
        found = cls(len(first._stored), capacity)
        length = parts[0][2].shape[1]
        for name in ("_keys", "_values"):
            for layer in range(len(first._stored)):
                taken = [_take(getattr(cache, name)[layer], rows, columns) for cache, rows, columns in parts]
                buffer = paddle.zeros([rows, capacity, *taken[0].shape[2:]], dtype=taken[0].dtype)
                buffer[:, :length] = taken[0] if len(taken) == 1 else paddle.concat(taken)
                getattr(found, name)[layer] = buffer
        found._stored, found.length = [length] * len(first._stored), length
        return found


def _take(buffer: paddle.Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> paddle.Tensor:
    """[b, K, N, D] of a buffer [B, capacity, N, D]."""
    batch, capacity, heads, size = buffer.shape
    index = paddle.to_tensor((rows[:, None] * capacity + columns).reshape(-1))
    flat = paddle.index_select(buffer.reshape([batch * capacity, heads, size]), index)
    return flat.reshape([len(rows), columns.shape[1], heads, size])
