"""Attention by groups of tokens through the causal operator: the tokens of a group attend to each other and to all before them.

The operator lets query i attend to keys 0 .. i. So a group of n tokens is laid out on 2 n - 1 slots, its keys on the first n, its
queries on the last n: every query then stands behind, or at, the last key of its group. Slots without a key are masked for all
queries, which costs no products; a group of one token, such as a token of text, takes one slot. Memory grows as that of the
operator, with the number of slots and not with its square.

Letters: B batch, S new positions, T slots, P cached positions, h heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops


@dataclass(frozen=True, slots=True)
class Slots:
    """Where queries and keys of a batch stand, for all layers.

    Attributes:
        keys, queries: int64 [B * T], the row of [B * S] that each slot has. answers: int64 [B * S], the slot of each query.
        ends: int32 [B, 1, T, 1], ``startend_row_indices`` of the slots, or None behind a cache.
        mask: int64 [B, P + T], 0 at slots without a key.
        shape: (B, T).
    """

    keys: Tensor
    queries: Tensor
    answers: Tensor
    ends: Tensor | None
    mask: Tensor
    shape: tuple[int, int]


def make_slots(joined_BS: NDArray[np.int8], ends_BS: NDArray[np.int32] | None, past: int = 0) -> Slots | None:
    """The slots of rows; None where every group is a single token.

    Args:
        joined_BS: 1 where a token is of the group of the one before it.
        ends_BS: the first row that no longer attends to each column; None: none ends. Not together with a cache.
        past: cached positions, to which every query attends.
    """
    B, S = joined_BS.shape
    if not joined_BS.any():
        return None
    starts = joined_BS == 0
    starts[:, 0] = True
    columns = np.arange(S)
    first_BS = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
    next_BS = np.minimum.accumulate(np.where(np.roll(starts, -1, axis=1), columns, S)[:, ::-1], axis=1)[:, ::-1]
    next_BS = np.where(next_BS >= S, S - 1, next_BS)
    size_BS = next_BS - first_BS + 1
    base_BS = np.cumsum(np.where(starts, 2 * size_BS - 1, 0), axis=1) - (2 * size_BS - 1)
    key_slots = base_BS + columns - first_BS
    query_slots = key_slots + size_BS - 1
    T = int(query_slots.max()) + 1
    rows = np.arange(B)[:, None]
    keys, queries = np.zeros((B, T), np.int64), np.zeros((B, T), np.int64)
    keys[rows, key_slots] = rows * S + columns
    queries[rows, query_slots] = rows * S + columns
    mask = np.ones((B, past + T), np.int64)
    mask[:, past:] = 0
    mask[rows, past + key_slots] = 1
    ends = None
    if ends_BS is not None:
        ends_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
        slot_of_end = np.append(query_slots, np.full((B, 1), T), axis=1)
        # a column of padding ends at itself, so that nobody attends to it
        hidden = ends_BS <= columns
        ends_BT[rows, key_slots] = np.where(hidden, key_slots, slot_of_end[rows, ends_BS]).astype(np.int32)
        ends = paddle.to_tensor(ends_BT.reshape(B, 1, T, 1))
    answers = (rows * T + query_slots).reshape(-1)
    key_rows, query_rows, answer_rows = (
        paddle.to_tensor(np.ascontiguousarray(x).reshape(-1)) for x in (keys, queries, answers)
    )
    return Slots(key_rows, query_rows, answer_rows, ends, paddle.to_tensor(mask), (B, T))


def grouped_attention(q_BShd: Tensor, k_BKhd: Tensor, v_BKhd: Tensor, slots: Slots) -> Tensor:
    """Softmax attention [B, S, h, d] by groups; the last S of the keys are those of the queries."""
    (B, T), S = slots.shape, q_BShd.shape[1]
    past = k_BKhd.shape[1] - S

    def placed(x: Tensor, rows: Tensor) -> Tensor:
        flat = x.reshape([B * S, *x.shape[2:]])
        return paddle.gather(flat, rows).reshape([B, T, *x.shape[2:]])

    k, v = (placed(x[:, past:], slots.keys) for x in (k_BKhd, v_BKhd))
    if past:
        k, v = (paddle.concat([x[:, :past], new], axis=1) for x, new in ((k_BKhd, k), (v_BKhd, v)))
    q = placed(q_BShd, slots.queries)
    y = ops.attention(q, k, v, startend_row_indices=slots.ends, attention_mask=slots.mask)
    return paddle.gather(y.reshape([B * T, *y.shape[2:]]), slots.answers).reshape(q_BShd.shape)
