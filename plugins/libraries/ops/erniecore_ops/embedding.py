"""Row lookup in the embedding table, and the tokens that come later in a row."""

from __future__ import annotations

from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, _C_ops
from paddle.autograd import PyLayer

from erniecore_ops.kernels import replaceable
from erniecore_ops.shards import sharded_ids


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """``weight[ids]``: integers [...] -> [..., H]; the gradient adds up over repeated ids."""
    if paddle.is_grad_enabled() and not weight.stop_gradient:
        y: Tensor = _Embedding.apply(weight, ids)
        return y
    return F.embedding(ids, weight)


class _Embedding(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = weight.shape[0]
        return F.embedding(ids, weight.detach())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (ids,) = ctx.saved_tensor()
        return embedding_backward(ids, dy.detach(), ctx.rows)


@replaceable
def embedding_backward(ids: Tensor, dy: Tensor, rows: int) -> Tensor:
    """``dw[v] = sum of dy[t] over ids[t] = v``, without a gradient: ids [...], dy [..., H] -> [rows, H]."""
    like = paddle.empty([rows, dy.shape[-1]], dy.dtype)
    dw: Tensor = _C_ops.embedding_grad(ids, like, dy, -1, False)  # type: ignore[no-untyped-call]
    return dw


def shifted(ids: Tensor, steps: int) -> Tensor:
    """At each position of a row the id that stands ``steps`` further, at the last ones those of its beginning: [B, S] ->
    [B, S]. Ids of rows whose positions several ranks share are bound in ``sharded_ids`` to what does it."""
    shard = sharded_ids.of(ids)
    found: Tensor = paddle.roll(ids, -steps, axis=1) if shard is None else shard.shifted(steps)
    return found
