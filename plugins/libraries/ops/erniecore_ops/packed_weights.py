"""Matmuls with weights that are quantized to 8 or 4 bits, and their dequantization. Nothing is quantized here (quantizers do)
and nothing has a gradient.

A weight W [.., I, O] is stored transposed. Each ``group`` inputs of an output share a float32 scale s; 0: all of them.

    int8   codes int8 [.., O, I]            W' = s q
    int4   codes int8 [.., ceil(O / 2), I]  W' = s q          outputs 2j and 2j + 1 in the low and high half of a byte
    nf4    codes like int4                  W' = s NF4[q + 8]

Scales are [.., O], or [.., O, G] where there are groups. Letters: N rows, I inputs, O outputs, E experts, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import paddle
from paddle import Tensor

from erniecore_ops.grouped_linear import grouped_matmul
from erniecore_ops.grouped_swiglu import Part, Routes
from erniecore_ops.kernels import replaceable

#: 16 levels, denser where a normal distribution is (arXiv:2305.14314, appendix E)
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
#: weights that are dequantized at a time (64 MiB in float32); one expert or two outputs at least
CHUNK = 1 << 24


@dataclass(frozen=True)
class QuantizedMatrix:
    """Quantized values and scales of a weight [.., I, ``outputs``] in ``quant_dtype`` int8, int4 or nf4. Not a tuple: a
    ``PyLayer`` would look for tensors in it. A plugin with its own quant dtype overrides ``inputs``, ``part``, ``of`` and
    ``dequantize``."""

    qweight: Tensor
    scales: Tensor
    quant_dtype: str
    group: int
    outputs: int

    @property
    def inputs(self) -> int:
        """The number of inputs, I."""
        return int(self.qweight.shape[-1])

    def part(self, start: int, stop: int) -> QuantizedMatrix:
        """Outputs ``start`` to ``stop``; in four bits ``start`` must be even."""
        first, last = (start, stop) if self.quant_dtype == "int8" else (start // 2, (stop + 1) // 2)
        qweight, scales = self.qweight[..., first:last, :], self.scales
        scales = scales[..., start:stop, :] if self.group else scales[..., start:stop]
        return replace(self, qweight=qweight, scales=scales, outputs=stop - start)

    def of(self, experts: list[int]) -> QuantizedMatrix:
        """Some experts of a stack, in that order."""
        index = paddle.to_tensor(experts, "int64")
        return replace(self, qweight=paddle.gather(self.qweight, index), scales=paddle.gather(self.scales, index))

    def dequantize(self) -> Tensor:
        """The dequantized weight; see :func:`dequantize`."""
        qweight = self.qweight if self.quant_dtype == "int8" else unpack_int4(self.qweight, self.outputs)
        scales = self.scales if self.group else self.scales.unsqueeze(-1)
        if self.group:
            scales = paddle.repeat_interleave(scales, self.group, axis=-1)[..., : self.inputs]
        if self.quant_dtype == "nf4":
            index = qweight.astype("int32").reshape([-1]) + 8
            return paddle.gather(paddle.to_tensor(NF4, "float32"), index).reshape(qweight.shape) * scales
        return qweight.astype("float32") * scales


@replaceable
def dequantize(weight: QuantizedMatrix) -> Tensor:
    """The dequantized weight W', transposed: a new float32 tensor [.., O, I]."""
    return weight.dequantize()


@replaceable
def quantized_matmul(x: Tensor, weight: QuantizedMatrix) -> Tensor:
    """``x W'``: [N, I] -> [N, O], without a gradient. At most ``CHUNK`` values of W' are dequantized at a time."""
    x = x.detach()
    parts = [paddle.matmul(x, w, transpose_y=True) for _, w in _outputs(weight, x)]
    return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=-1)


@replaceable
def quantized_matmul_backward(dy: Tensor, weight: QuantizedMatrix) -> Tensor:
    """The gradient of :func:`quantized_matmul`: [N, O] -> [N, I]."""
    dy, dx = dy.detach(), None
    for columns, w in _outputs(weight, dy):
        part = paddle.matmul(dy[:, columns], w)
        dx = part if dx is None else dx.add_(part)
    return dx


@replaceable
def quantized_grouped_matmul(x: Tensor, weight: QuantizedMatrix, routes: Routes) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not dequantized."""
    return chunked_grouped_matmul(x, weight, routes, back=False)


@replaceable
def quantized_grouped_matmul_backward(dy: Tensor, weight: QuantizedMatrix, routes: Routes) -> Tensor:
    """The gradient of :func:`quantized_grouped_matmul`: [N, O] -> [N, I]."""
    return chunked_grouped_matmul(dy, weight, routes, back=True)


def chunked_grouped_matmul(rows: Tensor, weight: QuantizedMatrix, routes: Routes, *, back: bool) -> Tensor:
    """[N, I] -> [N, O], or its gradient [N, O] -> [N, I] (``back``), dequantizing some experts at a time."""
    inputs, outputs = weight.inputs, weight.outputs
    used = [part.expert for part in routes.experts]
    step = max(1, CHUNK // max(inputs * outputs, 1))
    pieces = []
    for first in range(0, len(used), step):
        chosen = used[first : first + step]
        start, stop = routes.experts[first].rows.start, routes.experts[first + len(chosen) - 1].rows.stop
        place = {expert: index for index, expert in enumerate(chosen)}
        parts = [
            Part(place[part.expert], slice(part.rows.start - start, part.rows.stop - start))
            for part in routes.parts
            if part.expert in place
        ]
        some = weight if len(chosen) == weight.qweight.shape[0] else weight.of(chosen)
        dequantized = dequantize(some).astype(rows.dtype)
        pieces.append(grouped_matmul(rows[start:stop], dequantized, parts, transposed=not back))
    if not pieces:
        return paddle.zeros([0, inputs if back else outputs], rows.dtype)
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)


def unpack_int4(stored: Tensor, outputs: int) -> Tensor:
    """Unpack two int4 values (-8 .. 7) per byte, int8 [.., ceil(O / 2), I] -> [.., O, I]; the shifts carry the sign."""
    four = paddle.to_tensor(4, "int8")
    low = paddle.bitwise_right_shift(paddle.bitwise_left_shift(stored, four), four)
    high = paddle.bitwise_right_shift(stored, four)
    *stack, rows, inputs = stored.shape
    both = paddle.stack([low, high], axis=-2).reshape([*stack, 2 * rows, inputs])
    return both if outputs == 2 * rows else both[..., :outputs, :]


def _outputs(weight: QuantizedMatrix, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(outputs, their W' [o, I]) in turn, in the dtype of ``like``."""
    step = max(2, CHUNK // max(weight.inputs, 1) // 2 * 2)
    for start in range(0, weight.outputs, step):
        stop = min(start + step, weight.outputs)
        some = weight if stop - start == weight.outputs else weight.part(start, stop)
        yield slice(start, stop), dequantize(some).astype(like.dtype)
