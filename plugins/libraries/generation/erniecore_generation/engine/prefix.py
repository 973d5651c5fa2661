"""Prefix cache: keys and values of the beginnings of texts, in blocks of tokens. A block is found by the hash of its own
tokens and all before it; the least recently used blocks go when the bytes are used up. What is stored is what was computed, so
a hit changes no number of a model whose passes do not depend on how a prompt is divided (see ``scheduler.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import paddle
    from numpy.typing import NDArray

    from erniecore_generation.cache import StaticCache

#: tokens of a block, unless somebody says otherwise
BLOCK = 16


@dataclass(frozen=True, slots=True)
class _Block:
    ids: tuple[int, ...]
    tensors: list[paddle.Tensor]
    num_bytes: int


class PrefixCache:
    """Blocks of ``size`` tokens in at most ``most_bytes``; 0 keeps nothing.

    Attributes:
        num_bytes: of the blocks. queries, hits: tokens of prompts that were looked up, and those found.
    """

    def __init__(self, size: int, most_bytes: int) -> None:
        self.size, self.most_bytes = size, most_bytes
        self.num_bytes = self.queries = self.hits = 0
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ids: Sequence[int], name: str, unit: int) -> list[list[paddle.Tensor]]:
        """The blocks of the longest beginning that is stored: a multiple of ``unit`` tokens, and not all of ``ids``, as the
        logits of the last one are needed. ``name``: of the adapter."""
        found: list[tuple[bytes, _Block]] = []
        for key, part in block_keys(ids[: len(ids) - 1], name, self.size):
            block = self._blocks.get(key)
            if block is None or block.ids != part:
                break
            found.append((key, block))
        del found[len(found) * self.size // unit * unit // self.size :]
        self.queries += len(ids)
        self.hits += len(found) * self.size
        # the beginning last, so that it stays longest: without it nothing behind it is found
        for key, _ in reversed(found):
            self._blocks.move_to_end(key)
        return [block.tensors for _, block in found]

    def add(
        self, ids: Sequence[int], name: str, cache: StaticCache, row: int, columns: NDArray[np.int64], start: int = 0
    ) -> None:
        """Store the whole blocks from token ``start`` on of a text, whose tokens are the ``columns`` [n] of a row."""
        if not self.most_bytes:
            return
        keys = list(block_keys(ids[: len(columns)], name, self.size))
        for number, (key, part) in enumerate(keys):
            first = number * self.size
            if first < start or key in self._blocks:
                continue
            tensors = cache.read(row, columns[first : first + self.size])
            num_bytes = sum(int(tensor.size) * int(tensor.element_size()) for tensor in tensors)
            self._blocks[key] = _Block(part, tensors, num_bytes)
            self.num_bytes += num_bytes
        # as in find: the end of a text goes before its beginning
        for key, _ in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)
        while self.num_bytes > self.most_bytes:
            _, block = self._blocks.popitem(last=False)
            self.num_bytes -= block.num_bytes


def block_keys(ids: Sequence[int], name: str, size: int) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Key and tokens of each whole block of ``size`` tokens; a key stands for the block and all before it."""
    key = blake2b(name.encode(), digest_size=16).digest()
    for start in range(0, len(ids) - size + 1, size):
        part = tuple(ids[start : start + size])
        key = blake2b(key + np.array(part, np.int64).tobytes(), digest_size=16).digest()
        yield key, part
