"""Products with weights of 8 or 4 bits that stay packed, and the numbers that their codes stand for. Nothing is encoded
here (quantizers do) and nothing has a gradient.

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

from erniecore.kernels import replaceable
from erniecore.ops.grouped_linear import grouped_product
from erniecore.ops.grouped_swiglu import Part, Routes

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
#: numbers that are unpacked at a time (64 MiB in float32); one expert or two outputs at least
CHUNK = 1 << 24


@dataclass(frozen=True)
class PackedMatrix:
    """Codes and scales of a weight [.., I, ``outputs``] in ``form`` int8, int4 or nf4. No tuple: a ``PyLayer`` would look
    for inputs in it. A plugin with a form of its own overrides ``inputs``, ``part``, ``of`` and ``numbers``; no kernel is
    asked for it."""

    codes: Tensor
    scales: Tensor
    form: str
    group: int
    outputs: int

    @property
    def inputs(self) -> int:
        """I."""
        return int(self.codes.shape[-1])

    def part(self, start: int, stop: int) -> PackedMatrix:
        """Outputs ``start`` to ``stop``; in four bits ``start`` must be even."""
        first, last = (start, stop) if self.form == "int8" else (start // 2, (stop + 1) // 2)
        codes, scales = self.codes[..., first:last, :], self.scales
        scales = scales[..., start:stop, :] if self.group else scales[..., start:stop]
        return replace(self, codes=codes, scales=scales, outputs=stop - start)

    def of(self, experts: list[int]) -> PackedMatrix:
        """Some experts of a stack, in that order."""
        index = paddle.to_tensor(experts, "int64")
        return replace(self, codes=paddle.gather(self.codes, index), scales=paddle.gather(self.scales, index))

    def numbers(self) -> Tensor:
        """See :func:`packed_numbers`."""
        codes = self.codes if self.form == "int8" else unpack_halves(self.codes, self.outputs)
        scales = self.scales if self.group else self.scales.unsqueeze(-1)
        if self.group:
            scales = paddle.repeat_interleave(scales, self.group, axis=-1)[..., : self.inputs]
        if self.form == "nf4":
            index = codes.astype("int32").reshape([-1]) + 8
            return paddle.gather(paddle.to_tensor(NF4, "float32"), index).reshape(codes.shape) * scales
        return codes.astype("float32") * scales


@replaceable
def packed_numbers(weight: PackedMatrix) -> Tensor:
    """W' transposed, float32 [.., O, I]; new."""
    return weight.numbers()


@replaceable
def packed_product(x: Tensor, weight: PackedMatrix) -> Tensor:
    """``x W'``: [N, I] -> [N, O], without a gradient. Only ``CHUNK`` numbers of W' exist at a time."""
    x = x.detach()
    parts = [paddle.matmul(x, w, transpose_y=True) for _, w in _outputs(weight, x)]
    return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=-1)


def packed_product_back(dy: Tensor, weight: PackedMatrix) -> Tensor:
    """The gradient of :func:`packed_product`: [N, O] -> [N, I]."""
    dy, dx = dy.detach(), None
    for columns, w in _outputs(weight, dy):
        part = paddle.matmul(dy[:, columns], w)
        dx = part if dx is None else dx.add_(part)
    return dx


@replaceable
def packed_grouped_product(x: Tensor, weight: PackedMatrix, routes: Routes) -> Tensor:
    """Rows [N, I] sorted by expert, each through its expert's W': [N, O]. Experts without rows are not unpacked."""
    return packed_grouped(x, weight, routes, back=False)


def packed_grouped(rows: Tensor, weight: PackedMatrix, routes: Routes, *, back: bool) -> Tensor:
    """[N, I] -> [N, O], or back, by unpacking some experts at a time."""
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
        some = weight if len(chosen) == weight.codes.shape[0] else weight.of(chosen)
        numbers = packed_numbers(some).astype(rows.dtype)
        pieces.append(grouped_product(rows[start:stop], numbers, parts, transposed=not back))
    if not pieces:
        return paddle.zeros([0, inputs if back else outputs], rows.dtype)
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)


def unpack_halves(stored: Tensor, outputs: int) -> Tensor:
    """Two codes of -8 .. 7 to a byte, int8 [.., ceil(O / 2), I] -> [.., O, I]; the shifts carry the sign."""
    four = paddle.to_tensor(4, "int8")
    low = paddle.bitwise_right_shift(paddle.bitwise_left_shift(stored, four), four)
    high = paddle.bitwise_right_shift(stored, four)
    *stack, rows, inputs = stored.shape
    both = paddle.stack([low, high], axis=-2).reshape([*stack, 2 * rows, inputs])
    return both if outputs == 2 * rows else both[..., :outputs, :]


def _outputs(weight: PackedMatrix, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(outputs, their W' [o, I]) in turn, in the dtype of ``like``."""
    step = max(2, CHUNK // max(weight.inputs, 1) // 2 * 2)
    for start in range(0, weight.outputs, step):
        stop = min(start + step, weight.outputs)
        some = weight if stop - start == weight.outputs else weight.part(start, stop)
        yield slice(start, stop), packed_numbers(some).astype(like.dtype)
