"""The language-model head and its loss in one, without the full logits. Not a mean: the caller divides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from erniecore_ops._attention_plan import softmax_rows_
from erniecore_ops.bfloat16_weights import bfloat16_matmul
from erniecore_ops.kernels import replaceable
from erniecore_ops.matmul import EXACT, matmul, num_parts, parts_matmul
from erniecore_ops.packed_weights import QuantizedMatrix, quantized_matmul, quantized_matmul_backward
from erniecore_ops.parallel import parallel_map, row_ranges
from erniecore_ops.quantized_head import head_matrix
from erniecore_ops.shards import sharded_parameters

#: The label of positions without a target, as ``ignore_index`` of Paddle's losses has it.
IGNORE = -100

#: Logits held at a time, and the fewest positions per piece (each piece passes over the whole gradient of the head).
LOGITS, FEWEST = 1 << 22, 256

#: Below this probability the label's logarithm is taken from the logits again (Paddle's softmax stops at e^-64).
TINY = 1e-27


class Piece(NamedTuple):
    """Some learned positions: where they are among the learned ones, and their labels as places in [c * V]."""

    rows: slice
    places: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be computed: learned positions (None = all), their pieces, the head if it is quantized, and whose gradients are
    wanted."""

    where: Tensor | None
    pieces: list[Piece]
    transposed: bool
    quantized: QuantizedMatrix | None
    hidden: bool
    weight: bool
    bias: bool

    def head(self, weight: Tensor, bias: Tensor | None) -> Head:
        """The head without gradients."""
        used = weight.detach() if self.quantized is None else self.quantized
        return Head(used, None if bias is None else bias.detach(), self.transposed)


class Head(NamedTuple):
    """The head without gradients."""

    weight: Tensor | QuantizedMatrix
    bias: Tensor | None
    transposed: bool

    def logits(self, hidden: Tensor) -> Tensor:
        """[c, H] -> [c, V]."""
        logits = self._multiply(hidden)
        return logits if self.bias is None else logits.add_(self.bias)

    def back(self, d_cV: Tensor, out: Tensor) -> None:
        """The gradient of the rows into ``out``: [c, V] -> [c, H]."""
        if isinstance(self.weight, QuantizedMatrix):
            paddle.assign(quantized_matmul_backward(d_cV, self.weight), output=out)
        elif self.weight.dtype == paddle.bfloat16:
            paddle.assign(bfloat16_matmul(d_cV, self.weight, not self.transposed, num_parts()), output=out)
        elif num_parts() < EXACT:
            paddle.assign(matmul(d_cV, self.weight, transpose_y=not self.transposed), output=out)
        else:
            paddle.matmul(d_cV, self.weight, transpose_y=not self.transposed, out=out)

    def _multiply(self, rows: Tensor) -> Tensor:
        if isinstance(self.weight, QuantizedMatrix):
            return quantized_matmul(rows, self.weight)
        if self.weight.dtype == paddle.bfloat16:
            return bfloat16_matmul(rows, self.weight, self.transposed, num_parts())
        return matmul(rows, self.weight, transpose_y=self.transposed)


class Sums:
    """Gradients of the head's weight and bias, added up over pieces."""

    weight: Tensor | None = None
    bias: Tensor | None = None

    def add(self, work: Work, hidden_cH: Tensor, d_cV: Tensor, g_c1: Tensor | None = None) -> None:
        """One more piece, its rows weighted by ``g_c1``; the factor goes to the narrow side of the product."""
        if work.weight:
            hidden_cH = hidden_cH if g_c1 is None else hidden_cH * g_c1
            left, right = (d_cV, hidden_cH) if work.transposed else (hidden_cH, d_cV)
            if self.weight is None:
                self.weight = matmul(left, right, transpose_x=True)
            elif num_parts() < EXACT:
                parts_matmul(left, right, True, False, num_parts(), self.weight)
            else:
                add_matmul_(self.weight, left, right)
        if work.bias:
            g_c1 = paddle.ones([d_cV.shape[0], 1], d_cV.dtype) if g_c1 is None else g_c1
            more = paddle.matmul(g_c1, d_cV, transpose_x=True).reshape([-1])
            self.bias = more if self.bias is None else self.bias.add_(more)

    def scale(self, factor: float) -> None:
        """Both times one factor, in place."""
        for total in (self.weight, self.bias):
            if total is not None:
                total.scale_(factor)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, transposed: bool, bias: Tensor | None = None, chunk: int = 0
) -> Tensor:
    """Negative log-likelihood of each label under ``softmax(hidden @ weight + bias)``.

    Only positions with a label are computed, in pieces: the full logits exist at no time.

    Args:
        hidden: [T, H]. weight: [H, V], or [V, H] when ``transposed``. bias: [V]. A frozen bfloat16 weight is used as it is,
            widened as it is multiplied. A quantized one is bound in ``quantized_heads``. A weight that is one rank's part of
            the vocabulary is bound in ``sharded_parameters`` to what computes the loss with it.
        labels: integers [T]; IGNORE = not learned.
        chunk: positions per piece; 0 chooses.
    Returns:
        float32 [T] (float64 for float64 input); 0 at IGNORE.
    Raises:
        ValueError: a label outside 0 .. V - 1.
    """
    shard = sharded_parameters.of(weight)
    if shard is not None:
        shared: Tensor = shard.linear_cross_entropy(
            hidden, weight, labels, transposed=transposed, bias=bias, chunk=chunk
        )
        return shared
    quantized = head_matrix(weight)
    V = quantized.outputs if quantized else weight.shape[0 if transposed else 1]
    labels_T = labels.numpy().astype(np.int64)
    learned = np.flatnonzero(labels_T != IGNORE)
    targets = labels_T[learned]
    if len(learned) and (targets.min() < 0 or targets.max() >= V):
        raise ValueError(f"labels must be {IGNORE} or in 0 .. {V - 1}, found {targets.min()} .. {targets.max()}")
    dtype = "float64" if hidden.dtype == paddle.float64 else "float32"
    where = None if len(learned) == len(labels_T) else paddle.to_tensor(learned)
    size = chunk or max(FEWEST, LOGITS // V)
    pieces = [_piece(start, targets[start : start + size], V) for start in range(0, len(targets), size)]
    kept = weight.dtype == paddle.bfloat16 and weight.stop_gradient and dtype == "float32"
    kept = kept or quantized is not None
    inputs = [None if x is None else x.astype(dtype) for x in (hidden, None if kept else weight, bias)]
    inputs[1] = weight if kept else inputs[1]
    wanted = [paddle.is_grad_enabled() and x is not None and not x.stop_gradient for x in inputs]
    loss: Tensor = _LinearCrossEntropy.apply(*inputs, Work(where, pieces, transposed, quantized, *wanted))
    return loss


def _piece(start: int, targets: np.ndarray[Any, Any], V: int) -> Piece:
    places = np.arange(len(targets)) * V + targets
    return Piece(slice(start, start + len(targets)), paddle.to_tensor(places), paddle.to_tensor(targets))


class _LinearCrossEntropy(PyLayer):  # type: ignore[misc]
    """Gradients are made beside the loss, while the probabilities are at hand: d logits = g (softmax - onehot) with
    one factor g per row, so that of ``hidden`` waits for g only. That of ``weight`` too where g is one number, as in
    a mean; otherwise the logits are computed again. Letters: n learned positions, c positions of a piece.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, work: Work) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.work, ctx.sums = work, Sums()
        loss_T = paddle.zeros(hidden.shape[:1], hidden.dtype)
        if not work.pieces:
            return loss_T
        head = work.head(weight, bias)
        hidden_nH = _learned(hidden.detach(), work.where)
        ctx.back_nH = paddle.empty_like(hidden_nH) if work.hidden else None
        losses = [_forward_piece(piece, hidden_nH, head, work, ctx) for piece in work.pieces]
        loss_n = paddle.concat(losses) if len(losses) > 1 else losses[0]
        return loss_n if work.where is None else loss_T.scatter_(work.where, loss_n)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensor()
        work: Work = ctx.work
        num_grads = 2 if bias is None else 3
        if not work.pieces:
            wanted = zip((hidden, weight, bias)[:num_grads], (work.hidden, work.weight, work.bias), strict=False)
            return tuple(paddle.zeros_like(x) if is_wanted else None for x, is_wanted in wanted)
        g_n1 = _learned(dy.detach(), work.where).reshape([-1, 1])
        d_hidden = None
        if work.hidden:
            d_hidden = ctx.back_nH * g_n1
            if work.where is not None:
                d_hidden = paddle.zeros_like(hidden).scatter_(work.where, d_hidden)
        sums, ctx.sums = ctx.sums, None
        if work.weight or work.bias:
            factors = g_n1.numpy()
            if sums is not None and (factors == factors[0]).all():
                sums.scale(float(factors[0, 0]))
            else:
                sums = _weighted_sums(work, hidden.detach(), weight.detach(), bias, g_n1)
        d_weight, d_bias = (None, None) if sums is None else (sums.weight, sums.bias)
        return (d_hidden, d_weight, d_bias)[:num_grads]


def _forward_piece(piece: Piece, hidden_nH: Tensor, head: Head, work: Work, ctx: Any) -> Tensor:
    """Loss [c] and gradients of one piece. A function, so that its logits are gone before the next one makes its own."""
    hidden_cH = hidden_nH[piece.rows]
    logits_cV = head.logits(hidden_cH)
    slopes = work.hidden or work.weight or work.bias
    loss_c = cross_entropy_rows_(logits_cV, piece, _again(head, hidden_cH), slopes)
    if work.hidden:
        head.back(logits_cV, ctx.back_nH[piece.rows])
    if slopes:
        ctx.sums.add(work, hidden_cH, logits_cV)
    return loss_c


def _weighted_sums(work: Work, hidden: Tensor, weight: Tensor, bias: Tensor | None, g_n1: Tensor) -> Sums:
    """Gradients of the head where positions have different factors: another pass over the logits."""
    head = work.head(weight, bias)
    hidden_nH, sums = _learned(hidden, work.where), Sums()
    for piece in work.pieces:
        hidden_cH = hidden_nH[piece.rows]
        d_cV = head.logits(hidden_cH)
        cross_entropy_rows_(d_cV, piece, _again(head, hidden_cH), slopes=True)
        sums.add(work, hidden_cH, d_cV, g_n1[piece.rows])
        del d_cV  # before the next one is made
    return sums


def _learned(x: Tensor, where: Tensor | None) -> Tensor:
    return x if where is None else paddle.gather(x, where)


def _again(head: Head, hidden_cH: Tensor) -> Callable[[Tensor], Tensor]:
    """The logits of some rows of a piece once more."""
    return lambda rows: head.logits(paddle.gather(hidden_cH, rows))


@replaceable
def cross_entropy_rows_(logits_cV: Tensor, piece: Piece, again: Callable[[Tensor], Tensor], slopes: bool) -> Tensor:
    """Loss of each row [c], -log softmax at its label, NaN where a logit is not finite; no gradient. Of the logits remains
    softmax - onehot if ``slopes``, else nothing of use. ``again``: rows -> their logits, for those who lost them."""
    doubt_c = _nan_where_not_finite(logits_cV)
    p_cV = _softmax(logits_cV)
    loss = _losses(piece, p_cV, again) + doubt_c
    if slopes:
        flat = p_cV.reshape([-1])
        flat.scatter_(piece.places, paddle.gather(flat, piece.places) - 1.0)
    return loss


@replaceable
def add_matmul_(total_MN: Tensor, left_cM: Tensor, right_cN: Tensor) -> Tensor:
    """total += left^T right, in place; no gradient."""
    sum_MN: Tensor = total_MN.add_(paddle.matmul(left_cM, right_cN, transpose_x=True))
    return sum_MN


def _nan_where_not_finite(logits_cV: Tensor) -> Tensor:
    """0 for rows of finite logits, else NaN [c]: Paddle's softmax makes a uniform distribution of a row with NaN."""
    sum_c = paddle.matmul(logits_cV, paddle.ones([logits_cV.shape[1]], logits_cV.dtype))
    return sum_c - sum_c


def _softmax(logits: Tensor) -> Tensor:
    """In place, row ranges on all cores."""
    parallel_map(lambda rows: softmax_rows_(logits[rows[0] : rows[1]]), row_ranges(*logits.shape), logits)
    return logits


def _losses(piece: Piece, p_cV: Tensor, again: Callable[[Tensor], Tensor]) -> Tensor:
    """-log softmax at the labels; where that probability is too small for its logarithm, log-sum-exp of those rows."""
    p = paddle.gather(p_cV.reshape([-1]), piece.places)
    loss = -paddle.log(p.clip(min=TINY))
    tiny = np.flatnonzero(p.numpy() < TINY)
    if len(tiny):
        at = paddle.to_tensor(tiny)
        logits = again(at)
        label = paddle.take_along_axis(logits, paddle.gather(piece.labels, at).unsqueeze(-1), 1).squeeze(-1)
        loss = loss.scatter_(at, paddle.logsumexp(logits, axis=-1) - label)
    return loss
