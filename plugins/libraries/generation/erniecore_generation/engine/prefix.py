"""Prefix cache: keys and values of the beginnings of prompts, in blocks of tokens. A block is found by the hash of its own
tokens and all before it; the least recently used blocks go when the bytes are used up. What is stored is what was computed, so
a hit changes no number of a model whose passes do not depend on how a prompt is divided (see ``scheduler.py``).

A prompt with images is divided as it is computed, and the hash of a block has what the model sees of its images: numbers are
then those without the cache, whatever they depend on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import paddle
    from numpy.typing import NDArray

    from erniecore_generation.cache import StaticCache
    from erniecore_generation.media import PromptMedia

#: tokens of a block, unless somebody says otherwise
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens ``ids`` from ``start`` to ``end`` of a prompt; ``key`` stands for them and all before them."""

    key: bytes
    start: int
    end: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    ids: tuple[int, ...]
    tensors: list[paddle.Tensor]
    num_bytes: int


class PrefixCache:
    """Blocks, of texts with ``size`` tokens each, in at most ``most_bytes``; 0 keeps nothing.

    Attributes:
        num_bytes: of the blocks. queries, hits: tokens of prompts that were looked up, and those found.
    """

    def __init__(self, size: int, most_bytes: int) -> None:
        self.size, self.most_bytes = size, most_bytes
        self.num_bytes = self.queries = self.hits = 0
        self._blocks: OrderedDict[bytes, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, blocks: Iterable[Block], tokens: int, unit: int = 1) -> tuple[list[list[paddle.Tensor]], int]:
        """What is stored of the longest beginning, and its length: a multiple of ``unit``. ``tokens``: of the prompt, all of
        which are never found, as the logits of the last one are needed."""
        found: list[tuple[Block, _Kept]] = []
        for block in blocks:
            kept = self._blocks.get(block.key)
            if block.end >= tokens or kept is None or kept.ids != block.ids:
                break
            found.append((block, kept))
        while found and found[-1][0].end % unit:
            found.pop()
        length = found[-1][0].end if found else 0
        self.queries += tokens
        self.hits += length
        # the beginning last, so that it stays longest: without it nothing behind it is found
        for block, _ in reversed(found):
            self._blocks.move_to_end(block.key)
        return [kept.tensors for _, kept in found], length

    def add(
        self, blocks: Iterable[Block], cache: StaticCache, row: int, columns: NDArray[np.int64], start: int = 0
    ) -> None:
        """Store the blocks from token ``start`` on of a prompt, whose tokens so far are the ``columns`` [n] of a row."""
        if not self.most_bytes:
            return
        whole = [block for block in blocks if block.end <= len(columns)]
        new = [block for block in whole if block.start >= start and block.key not in self._blocks]
        if new:
            sizes = [block.end - block.start for block in new]
            # in one go: what an operator costs by itself is more than copying a block of one layer
            parts = cache.read_parts(row, np.concatenate([columns[block.start : block.end] for block in new]), sizes)
            for block, tensors in zip(new, parts, strict=True):
                num_bytes = sum(int(tensor.size) * int(tensor.element_size()) for tensor in tensors)
                self._blocks[block.key] = _Kept(block.ids, tensors, num_bytes)
                self.num_bytes += num_bytes
        # as in find: the end of a text goes before its beginning
        for block in reversed(whole):
            if block.key in self._blocks:
                self._blocks.move_to_end(block.key)
        while self.num_bytes > self.most_bytes:
            _, kept = self._blocks.popitem(last=False)
            self.num_bytes -= kept.num_bytes


def text_blocks(ids: Sequence[int], name: str, size: int) -> Iterator[Block]:
    """Each whole block of ``size`` tokens of a text; ``name``: of the adapter."""
    return _blocks(ids, name.encode(), range(size, len(ids) + 1, size))


def media_blocks(ids: Sequence[int], name: str, media: PromptMedia, chunk: int) -> Iterator[Block]:
    """Each whole chunk of a prompt with images; never one of a text, whose passes may be others."""
    return _blocks(ids, b"images " + name.encode(), media.chunk_ends(chunk), media.digest)


def _blocks(
    ids: Sequence[int], name: bytes, ends: Iterable[int], seen: Callable[[int, int], bytes] = lambda start, end: b""
) -> Iterator[Block]:
    key, start = blake2b(name, digest_size=16).digest(), 0
    for end in ends:
        part = tuple(ids[start:end])
        key = blake2b(key + np.array(part, np.int64).tobytes() + seen(start, end), digest_size=16).digest()
        yield Block(key, start, end, part)
        start = end
