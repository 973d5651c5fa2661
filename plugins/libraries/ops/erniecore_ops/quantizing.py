"""Quantized values of weights in the memory of the host, as :class:`erniecore_ops.packed_weights.QuantizedMatrix` stores them:
block by block in the processor's cache, on all of its cores. A block is some outputs of one matrix; its scales and quantized
values are found as it lies, [I, o], and only the finished bytes are turned, a quarter or an eighth of what the weights take.
Divisions are those of IEEE 754, so that the bits are the same on every machine; Paddle's are off by one place here and there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from erniecore_ops._parallel import memory_of, parallel_map

Floats = NDArray[np.float32]
#: weights of a block (512 KiB in float32); two outputs at least
BLOCK = 1 << 17


def quantize_weight(
    weight: Tensor, group: int, top: float, middles: Sequence[float] | None, *, pairs: bool
) -> tuple[Tensor, Tensor]:
    """Quantized values int8 [.., rows, I] and scales float32 [.., O, G] of ``weight`` [.., I, O], which is in the memory of the
    host and not empty. A scale is NaN or infinite where a weight of its group is.

    Args:
        group: inputs that share a scale; 0: all of an output. top: a scale is the largest magnitude divided by it.
        middles: what lies between neighbors of the 16 levels, ascending, for values -8 .. 7; None: whole numbers.
        pairs: outputs 2j and 2j + 1 share a byte, the first in its low half; else an output has a row of its own.
    """
    *stack, inputs, outputs = weight.shape
    rows, groups = (outputs + 1) // 2 if pairs else outputs, -(-inputs // group) if group else 1
    quantized, scales = paddle.empty([*stack, rows, inputs], "int8"), paddle.empty([*stack, outputs, groups])
    values = weight.detach() if weight.dtype == paddle.float32 else weight.detach().astype("float32")
    matrices = memory_of(values).reshape([-1, inputs, outputs])
    into, into_scales = (
        memory_of(quantized).reshape([-1, rows, inputs]),
        memory_of(scales).reshape([-1, outputs, groups]),
    )
    step = max(2, BLOCK // inputs // 2 * 2)
    levels = None if middles is None else np.asarray(middles, np.float32)

    def block(place: tuple[int, int]) -> None:
        matrix, start = place
        stop = min(start + step, outputs)
        found, scale = _block(matrices[matrix][:, start:stop], group or inputs, top, levels)
        into_scales[matrix, start:stop] = scale.T
        first, last = (start // 2, (stop + 1) // 2) if pairs else (start, stop)
        into[matrix, first:last] = (_pairs(found) if pairs else found).T

    parallel_map(block, [(m, start) for m in range(len(matrices)) for start in range(0, outputs, step)], weight)
    return quantized, scales


def _block(
    weight: NDArray[np.generic], group: int, top: float, levels: Floats | None
) -> tuple[NDArray[np.int8], Floats]:
    """Values int8 [I, o] and scales [G, o] of ``weight`` [I, o]; what a short last group lacks is zero."""
    inputs, outputs = weight.shape
    ratio = np.zeros([-(-inputs // group) * group, outputs], np.float32)
    ratio[:inputs] = weight
    grouped = ratio.reshape([-1, group, outputs])
    with np.errstate(invalid="ignore", over="ignore"):
        scales: Floats = np.abs(grouped).max(axis=1) / np.float32(top)
        scales[scales == 0] = 1
        grouped /= scales[:, None, :]
        return _rounded(ratio[:inputs], top) if levels is None else _counted(ratio[:inputs], levels), scales


def _rounded(ratio: Floats, top: float) -> NDArray[np.int8]:
    """Half to even, in place."""
    np.rint(ratio, out=ratio)
    np.clip(ratio, -top, top, out=ratio)
    return ratio.astype(np.int8)


def _counted(ratio: Floats, levels: Floats) -> NDArray[np.int8]:
    """How many of ``levels`` are smaller, from -8 on."""
    quantized = np.full(ratio.shape, -8, np.int8)
    for level in levels:
        quantized += ratio > level
    return quantized


def _pairs(quantized: NDArray[np.int8]) -> NDArray[np.int8]:
    """[I, o] -> [I, ceil(o / 2)]: two columns in a byte; what a last one lacks is 0."""
    if quantized.shape[1] % 2:
        quantized = np.pad(quantized, ((0, 0), (0, 1)))
    both = quantized.view(np.uint8)
    stored: NDArray[np.int8] = ((both[:, 0::2] & np.uint8(15)) | (both[:, 1::2] << np.uint8(4))).view(np.int8)
    return stored
