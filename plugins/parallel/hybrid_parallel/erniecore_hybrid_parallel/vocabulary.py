"""The loss of a head whose vocabulary is shared: the full logits exist on no rank.

    -log softmax(z)_y = log Σ_v exp(z_v - m) + m - z_y        Σ, max m and z_y over all ranks

Letters: T positions, n learned ones, c of a piece, H hidden, v this rank's part of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops
from erniecore.api.method import IGNORE
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.regions import enter, join

#: logits held at a time, where the caller leaves it open
_LOGITS = 1 << 22


class VocabShard:
    """What a head's weight carries: how ``ops.linear_cross_entropy`` is computed with this part of it."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm

    def linear_cross_entropy(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, *, transposed: bool, bias: Tensor | None, chunk: int
    ) -> Tensor:
        """As ``ops.linear_cross_entropy`` over the whole vocabulary; the same on every rank."""
        size = weight.shape[0 if transposed else 1]
        labels_T = labels.numpy().astype(np.int64)
        (learned,) = np.nonzero(labels_T != IGNORE)
        targets = labels_T[learned]
        if len(targets) and (targets.min() < 0 or targets.max() >= size * self.comm.size):
            raise ValueError(f"labels must be {IGNORE} or in 0 .. {size * self.comm.size - 1}")
        work = _Work(
            self.comm, learned, targets - self.comm.index * size, transposed, chunk or max(256, _LOGITS // size)
        )
        inputs = [None if x is None else x.astype("float32") for x in (hidden, weight, bias)]
        work.frozen = tuple(x is None or x.stop_gradient for x in inputs)
        loss: Tensor = _SharedCrossEntropy.apply(*inputs, work)
        return loss

    def logits(self, hidden: Tensor, weight: Tensor, *, transposed: bool, bias: Tensor | None) -> Tensor:
        """The logits of all parts, joined in the order of ranks."""
        return join(ops.head_logits(enter(hidden, self.comm), weight, transposed=transposed, bias=bias), self.comm)


class _Work:
    """Learned positions and their labels as rows of this rank's part (outside of it: another rank's)."""

    frozen: tuple[bool, ...] = ()

    def __init__(self, comm: Comm, learned: Any, local: Any, transposed: bool, chunk: int) -> None:
        self.comm, self.learned, self.local, self.transposed = comm, learned, local, transposed
        self.chunks = [slice(start, start + chunk) for start in range(0, len(learned), chunk)]

    def logits(self, hidden_cH: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = ops.matmul(hidden_cH, weight, transpose_y=self.transposed)
        return logits if bias is None else logits + bias

    def labels(self, chunk: slice, size: int) -> tuple[Tensor, Tensor]:
        """(column, clipped into this part; 1 where it is of this part), each [c, 1]."""
        local = self.local[chunk, None]
        mine = (local >= 0) & (local < size)
        return paddle.to_tensor(np.clip(local, 0, size - 1)), paddle.to_tensor(mine.astype("float32"))


class _SharedCrossEntropy(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, work: _Work) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.work, ctx.norms = work, []
        loss_T = paddle.zeros(hidden.shape[:1], "float32")
        if not work.chunks:
            return loss_T
        hidden_nH = paddle.gather(hidden.detach(), paddle.to_tensor(work.learned))
        losses = []
        for chunk in work.chunks:
            logits_cv = work.logits(hidden_nH[chunk], weight.detach(), None if bias is None else bias.detach())
            highest_c1 = work.comm.all_max(logits_cv.max(axis=1, keepdim=True))
            column, mine = work.labels(chunk, logits_cv.shape[1])
            label_c1 = paddle.take_along_axis(logits_cv, column, 1) * mine
            sums_c1 = (logits_cv - highest_c1).exp().sum(axis=1, keepdim=True)
            both = work.comm.all_reduce(paddle.concat([sums_c1, label_c1], axis=1))
            norm_c1 = both[:, :1].log() + highest_c1
            ctx.norms.append(norm_c1)
            losses.append((norm_c1 - both[:, 1:]).squeeze(1))
        return loss_T.scatter_(paddle.to_tensor(work.learned), paddle.concat(losses))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensor()
        work: _Work = ctx.work
        inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
        grads = [None if f else paddle.zeros_like(x) for x, f in zip(inputs, work.frozen, strict=False)]
        if not work.chunks:
            return tuple(grads)
        where = paddle.to_tensor(work.learned)
        hidden_nH, dy_n1 = paddle.gather(hidden.detach(), where), paddle.gather(dy, where).unsqueeze(1)
        backs = []
        for chunk, norm_c1 in zip(work.chunks, ctx.norms, strict=True):
            rows_cH = hidden_nH[chunk]
            logits_cv = work.logits(rows_cH, weight.detach(), None if bias is None else bias.detach())
            column, mine = work.labels(chunk, logits_cv.shape[1])
            d_cv = (logits_cv - norm_c1).exp()
            d_cv = paddle.put_along_axis(d_cv, column, -mine, 1, reduce="add") * dy_n1[chunk]
            if grads[0] is not None:
                backs.append(ops.matmul(d_cv, weight.detach(), transpose_y=not work.transposed))
            if grads[1] is not None:
                left, right = (d_cv, rows_cH) if work.transposed else (rows_cH, d_cv)
                grads[1].add_(ops.matmul(left, right, transpose_x=True))
            if bias is not None and grads[2] is not None:
                grads[2].add_(d_cv.sum(axis=0))
        if grads[0] is not None:
            grads[0] = grads[0].scatter_(where, work.comm.all_reduce(paddle.concat(backs)))
        return tuple(grads)
