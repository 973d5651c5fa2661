"""Keys and values of past positions in buffers of fixed size, for decoding one token at a time.

Grouped-query aware: it stores key/value heads without repeating them. They may be stored quantized, if the model has a
``cache_codec`` (``types.CacheCodec``). It is not a paged cache: one contiguous buffer per layer. Letters:
B rows, S new positions, K stored positions, N key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray

from erniecore.api import UsageError, ops

if TYPE_CHECKING:
    from erniecore.api.quantizer import CacheCodec

#: what one layer stores of its keys or of its values, each [B, capacity, ...]
_Buffers = tuple[paddle.Tensor, ...]


class StaticCache:
    """Implements ``Cache`` over buffers [B, capacity, ...] that are allocated on first use: [B, capacity, N, D] in the key's
    dtype, or what the codec makes of it.

    Args:
        layers: number of layers that will call :meth:`update`, or the numbers of those that do.
        capacity: the most positions that a row can hold.
        codec: how keys and values are stored; None: as they are.
    """

    def __init__(self, layers: int | Sequence[int], capacity: int, codec: CacheCodec | None = None) -> None:
        self.capacity = capacity
        self._layers = tuple(range(layers) if isinstance(layers, int) else layers)
        #: number of a layer -> its place below
        self._places = {layer: place for place, layer in enumerate(self._layers)}
        count = len(self._layers)
        #: positions that every layer has stored
        self.length = 0
        self._codec = codec
        self._stored = [0] * count
        self._keys: list[_Buffers | None] = [None] * count
        self._values: list[_Buffers | None] = [None] * count

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        stored = [buffer for buffers in (*self._keys, *self._values) for buffer in buffers or ()]
        return sum(int(buffer.size) * int(buffer.element_size()) for buffer in stored)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update(self, layer: int, key: paddle.Tensor, value: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Append [B, S, N, D] in place; returns all keys and values so far, [B, K, N, D]: views without a copy, or new
        tensors with the dequantized values where there is a codec.

        Raises:
            UsageError: the positions do not fit, or the batch is not the one that the cache was made for.
        """
        place = self._places[layer]
        start = self._stored[place]
        end = self._end(place, key.shape[1])
        keys = self._write(self._keys, place, self._encoded(layer, "keys", key), start, end)
        values = self._write(self._values, place, self._encoded(layer, "values", value), start, end)
        self._stored[place] = end
        self.length = min(self._stored)
        return self._decoded(layer, "keys", keys, end, key), self._decoded(layer, "values", values, end, value)

    def room(self, layers: int, columns: int, shape: Sequence[int]) -> tuple[list[paddle.Tensor], list[paddle.Tensor]]:
        """The float32 buffers of the first ``layers``, for a kernel that writes the next ``columns`` positions of each into
        them and then calls :meth:`wrote`. Only for caches without a codec.

        Args:
            shape: [B, N, D].

        Raises:
            UsageError: as :meth:`update`.
        """
        batch, heads, size = shape
        self._end(0, columns)
        found = []
        for store in (self._keys, self._values):
            stored = [self._buffers(store, layer, batch, (((heads, size), "float32"),)) for layer in range(layers)]
            found.append([buffers[0] for buffers in stored])
        return found[0], found[1]

    def wrote(self, layers: int, columns: int) -> None:
        """Record that a kernel has written ``columns`` more positions of the first ``layers``."""
        self._stored[:layers] = [stored + columns for stored in self._stored[:layers]]
        self.length = min(self._stored)

    def _end(self, layer: int, columns: int) -> int:
        end = self._stored[layer] + columns
        if end > self.capacity:
            raise UsageError("the cache is full", found=f"{end} positions", expected=f"at most {self.capacity}")
        return end

    def _encoded(self, layer: int, part: str, new: paddle.Tensor) -> _Buffers:
        return (new,) if self._codec is None else self._codec.encode(layer, part, new)

    def _decoded(self, layer: int, part: str, stored: _Buffers, end: int, like: paddle.Tensor) -> paddle.Tensor:
        filled = tuple(buffer[:, :end] for buffer in stored)
        return filled[0] if self._codec is None else self._codec.decode(layer, part, filled, like)

    def _write(self, store: list[_Buffers | None], layer: int, new: _Buffers, start: int, end: int) -> _Buffers:
        stored = self._buffers(store, layer, new[0].shape[0], tuple((t.shape[2:], t.dtype) for t in new))
        for buffer, part in zip(stored, new, strict=True):
            buffer[:, start:end] = part
        return stored

    def _buffers(
        self, store: list[_Buffers | None], layer: int, batch: int, specs: Sequence[tuple[Sequence[int], Any]]
    ) -> _Buffers:
        """The buffers of a layer, allocated on first use; ``specs``: shape behind [B, capacity] and dtype of each."""
        stored = store[layer]
        if stored is None:
            stored = tuple(paddle.zeros([batch, self.capacity, *shape], dtype=dtype) for shape, dtype in specs)
            store[layer] = stored
        if stored[0].shape[0] != batch:
            raise UsageError("the cache holds another batch", found=f"{batch} rows", expected=f"{stored[0].shape[0]}")
        return stored

    def read(self, row: int, columns: NDArray[np.int64]) -> list[paddle.Tensor]:
        """Copies of what all layers store for some columns [n] of a row, each [1, n, ...]; see :meth:`fill`."""
        at, stores = np.array([row]), zip(self._keys, self._values, strict=True)
        return [_take(t, at, columns[None]) for pair in stores for buffers in pair for t in buffers or ()]

    def read_parts(self, row: int, columns: NDArray[np.int64], sizes: Sequence[int]) -> list[list[paddle.Tensor]]:
        """What :meth:`read` gives for the first ``sizes[0]`` columns, for the ``sizes[1]`` behind them, and so on: each part a
        copy of its own, so that it takes no more memory than it is."""
        tensors = self.read(row, columns)
        if len(sizes) == 1:
            return [tensors]
        divided = [paddle.split(tensor, list(sizes), axis=1) for tensor in tensors]
        return [[tensor.clone() for tensor in part] for part in zip(*divided, strict=True)]

    def fill(self, parts: Sequence[Sequence[paddle.Tensor]]) -> None:
        """Begin an empty cache of one row with columns that :meth:`read` gave, one after the other."""
        joined = iter([paddle.concat(list(found), axis=1) for found in zip(*parts, strict=True)])
        count = len(parts[0]) // (2 * len(self._keys))
        length = sum(int(part[0].shape[1]) for part in parts)
        for layer in range(len(self._keys)):
            for store in (self._keys, self._values):
                new = tuple(next(joined) for _ in range(count))
                self._write(store, layer, new, 0, length)
        self._stored, self.length = [length] * len(self._keys), length

    def put(self, row: int, other: StaticCache, length: int) -> None:
        """Replace a row by the only one of ``other``, so that both end at ``length``; zeros before it.

        Raises:
            UsageError: there is no room for ``length`` positions.
        """
        if length > self.capacity or other.length > length:
            raise UsageError("the cache is full", found=f"{length} positions", expected=f"at most {self.capacity}")
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for stored, given in zip(mine, theirs, strict=True):
                for buffer, new in zip(stored or (), given or (), strict=True):
                    # what the row had there before may not be finite, and would spoil sums even where it is masked
                    whole = paddle.zeros([1, length, *buffer.shape[2:]], dtype=buffer.dtype)
                    whole[:, length - other.length :] = new[:, : other.length]
                    buffer[row : row + 1, :length] = whole
        self._stored, self.length = [length] * len(self._keys), length

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order (a row may be taken twice)."""
        index = ops.tensor_of(np.array(rows, np.int64))
        for store in (self._keys, self._values):
            for layer, stored in enumerate(store):
                if stored is not None:
                    store[layer] = tuple(paddle.gather(buffer, index, axis=0) for buffer in stored)

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
        found = cls(first._layers, capacity, first._codec)
        length = parts[0][2].shape[1]
        for name in ("_keys", "_values"):
            for layer in range(len(first._stored)):
                stored = [(getattr(cache, name)[layer], at, columns) for cache, at, columns in parts]
                getattr(found, name)[layer] = tuple(
                    _joined(
                        [_take(buffers[i], at, columns) for buffers, at, columns in stored], (rows, capacity, length)
                    )
                    for i in range(len(stored[0][0]))
                )
        found._stored, found.length = [length] * len(first._stored), length
        return found


def _joined(taken: list[paddle.Tensor], sizes: tuple[int, int, int]) -> paddle.Tensor:
    """[rows, capacity, ...] with the parts in its first ``length`` positions; ``sizes``: rows, capacity, length."""
    rows, capacity, length = sizes
    buffer = paddle.zeros([rows, capacity, *taken[0].shape[2:]], dtype=taken[0].dtype)
    buffer[:, :length] = taken[0] if len(taken) == 1 else paddle.concat(taken)
    return buffer


def _take(buffer: paddle.Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> paddle.Tensor:
    """[b, K, ...] of a buffer [B, capacity, ...]."""
    batch, capacity, *rest = buffer.shape
    index = ops.tensor_of((rows[:, None] * capacity + columns).reshape(-1))
    flat = paddle.gather(buffer.reshape([batch * capacity, *rest]), index)
    return flat.reshape([len(rows), columns.shape[1], *rest])
