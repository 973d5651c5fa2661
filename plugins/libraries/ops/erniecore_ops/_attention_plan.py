"""Which keys each block of queries attends to, and the masks where a block sees only part of them. Computes no matmul
but the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from numpy.typing import NDArray
from paddle import Tensor

from erniecore_ops.kernels import replaceable

#: Added to a hidden score: finite, so that rows without a visible key give no NaN. Paddle's softmax stops at e^-64, so
#: hidden keys weigh 1.6e-28 instead of 0, far below the last bit of a sum.
HIDDEN = -1e30

#: Query rows (positions times heads of a group) of one block.
BLOCK_ROWS = 512

#: A plan keeps its masks at full width up to this many elements; beyond, blocks widen them on each use.
STORED = 1 << 22


@dataclass(frozen=True, slots=True)
class Block:
    """Queries ``rows`` (positions times group) against keys ``keys``; masks are None where nothing is hidden.

    ``hidden``: [rows, n], 0 or HIDDEN, for the last n of the keys (every row attends to the keys before them).
    ``alive``: [rows, 1], 0 for rows that attend to nothing.
    """

    rows: slice
    keys: slice
    hidden: Tensor | None = None
    alive: Tensor | None = None

    def probabilities(self, q_rd: Tensor, k_Kd: Tensor) -> Tensor:
        """softmax(q k^T) of visible keys; rows that attend to nothing are 0. ``q`` is scaled already."""
        scores = paddle.matmul(q_rd, k_Kd, transpose_y=True)
        return softmax_rows_(scores, self.hidden, self.alive)

    def scores(self, q_rd: Tensor, k_Kd: Tensor) -> Tensor:
        """q k^T, with ``HIDDEN`` added where a row does not attend to a key. ``q`` is scaled already."""
        scores = paddle.matmul(q_rd, k_Kd, transpose_y=True)
        return (
            scores if self.hidden is None else scores.add_(widened(self.hidden, scores.shape[1]).astype(scores.dtype))
        )


@replaceable
def softmax_rows_(scores: Tensor, hidden: Tensor | None = None, alive: Tensor | None = None) -> Tensor:
    """softmax of rows [T, N], in place, no gradient: ``hidden`` [T, m] is added to the last m columns first, rows where
    ``alive`` [T, 1] is 0 become 0."""
    if hidden is not None:
        scores = scores.add_(widened(hidden, scores.shape[1]).astype(scores.dtype))
    scores = F.softmax_(scores)
    return scores if alive is None else scores.multiply_(alive.astype(scores.dtype))


def widened(hidden: Tensor, width: int) -> Tensor:
    """The mask of all keys of a block, by zeros in front; adding to part of the columns would be slower."""
    missing = width - hidden.shape[1]
    if missing == 0:
        return hidden
    return paddle.concat([paddle.zeros([hidden.shape[0], missing], hidden.dtype), hidden], axis=1)


class Plan:
    """The blocks of every sequence; sequences that attend to the same keys share theirs."""

    def __init__(self, sequences: Sequence[Sequence[Block]]) -> None:
        self._sequences = sequences

    def blocks(self, sequence: int) -> Sequence[Block]:
        """Blocks of one sequence, from its first query to its last; blocks that attend to nothing are left out."""
        return self._sequences[sequence if len(self._sequences) > 1 else 0]


def make_plan(B: int, S: int, K: int, group: int, ends: NDArray[Any] | None, keep: NDArray[Any] | None) -> Plan:
    """Blocks of ``BLOCK_ROWS / group`` positions. The layers of a model ask for the same plan: the last few are kept.

    Args:
        ends: [B, K] first query row that no longer attends to a key. keep: bool [B, K], False masks a key.
    """
    end_bytes = None if ends is None or (ends >= S).all() else ends.astype(np.int32).tobytes()
    keep_bytes = None if keep is None or keep.all() else keep.astype(np.bool_).tobytes()
    if end_bytes is None and keep_bytes is None:
        B = 1
    return _plan(B, S, K, group, end_bytes, keep_bytes)


@lru_cache(maxsize=4)
def _plan(B: int, S: int, K: int, group: int, end_bytes: bytes | None, keep_bytes: bytes | None) -> Plan:
    ends = None if end_bytes is None else np.frombuffer(end_bytes, np.int32).reshape(B, K)
    keep = None if keep_bytes is None else np.frombuffer(keep_bytes, np.bool_).reshape(B, K)
    step = max(1, BLOCK_ROWS // group)
    sequences = []
    for b in range(B):
        row_ends, row_keep = (None if x is None else x[b] for x in (ends, keep))
        found = (_block(start, min(start + step, S), S, K, group, row_ends, row_keep) for start in range(0, S, step))
        sequences.append([block for block in found if block is not None])
    total = sum(_size(block) for blocks in sequences for block in blocks)
    return Plan([[_stored(block) for block in blocks] for blocks in sequences] if total <= STORED else sequences)


def _size(block: Block) -> int:
    """Elements of the widened mask."""
    return 0 if block.hidden is None else block.hidden.shape[0] * (block.keys.stop - block.keys.start)


def _stored(block: Block) -> Block:
    if block.hidden is None:
        return block
    return replace(block, hidden=widened(block.hidden, block.keys.stop - block.keys.start))


def _block(
    start: int, stop: int, S: int, K: int, group: int, ends: NDArray[Any] | None, keep: NDArray[Any] | None
) -> Block | None:
    """The block of query positions start .. stop - 1, or None if they attend to no key."""
    row, key = np.arange(start, stop)[:, None], np.arange(stop + K - S)
    visible: NDArray[np.bool_] = np.less_equal(key, row + (K - S))
    if ends is not None:
        visible &= row < ends[key]
    if keep is not None:
        visible &= keep[key]
    by_some, by_all = np.asarray(visible.any(axis=0)), np.asarray(visible.all(axis=0))
    if not by_some.any():
        return None
    first, last = int(by_some.argmax()), len(key) - int(by_some[::-1].argmax())
    rows, keys = slice(start * group, stop * group), slice(first, last)
    if by_all[keys].all():
        return Block(rows, keys)
    partial = visible[:, first + int(by_all[keys].argmin()) : last]
    hidden = np.repeat(np.where(partial, np.float32(0), np.float32(HIDDEN)), group, axis=0)
    alive = visible.any(axis=1, keepdims=True)
    some = None if alive.all() else paddle.to_tensor(np.repeat(alive, group, axis=0).astype(np.float32))
    return Block(rows, keys, paddle.to_tensor(hidden), some)
