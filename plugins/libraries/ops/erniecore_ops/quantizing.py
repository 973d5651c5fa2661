"""Quantized values of weights in the memory of the host or in a mapped file, as
:class:`erniecore_ops.packed_weights.QuantizedMatrix` stores them: block by block in the processor's cache, on all of its cores.
A block is some outputs of one matrix, as it lies: inputs first, as Paddle has it, or outputs first, as public files have it, in
which a kernel may read it. Nothing but the finished bytes is turned. Divisions are those of IEEE 754, so that the bits are the
same on every machine; Paddle's are off by one place here and there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from erniecore_ops.bfloat16_bits import bfloat16_to_float32
from erniecore_ops.kernels import replaceable
from erniecore_ops.packed_weights import NF4
from erniecore_ops.parallel import memory_of, parallel_map

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]
#: weights of a block (512 KiB in float32); two outputs at least
BLOCK = 1 << 17
#: the largest quantized value of each quant dtype; a scale is the largest weight divided by it
TOP = {"int8": 127.0, "int4": 7.0, "nf4": 1.0}
#: between neighboring levels of NF4: at or below the first is the first level, and so on
NF4_MIDDLES = tuple((a + b) / 2 for a, b in pairwise(NF4))
#: elements that are compared at a time
_COMPARED = 1 << 20
_LEVELS = np.array(NF4, np.float32)


class RoundingError(NamedTuple):
    """What quantization changed: Σ w², Σ (w' - w)² and the largest |w' - w|, of all weights."""

    signal: float
    noise: float
    largest: float

    @classmethod
    def of(cls, parts: Iterable[RoundingError]) -> RoundingError:
        """The error of all ``parts`` together, which are added in order."""
        signal = noise = largest = 0.0
        for some_signal, some_noise, some_largest in parts:
            signal, noise, largest = signal + some_signal, noise + some_noise, max(largest, some_largest)
        return cls(signal, noise, largest)

    @classmethod
    def between(cls, weights: Floats, others: Floats) -> RoundingError:
        """Of ``others``, which ``weights`` became."""
        with np.errstate(invalid="ignore", over="ignore"):
            error = others - weights
        return cls(_squares(weights), _squares(error), max(float(error.max()), -float(error.min())))

    @classmethod
    def between_tensors(cls, weights: Tensor, others: Tensor) -> RoundingError:
        """The same of tensors [N, ..]; some rows or experts at a time, which saves memory."""
        # memory itself: a slice of a Paddle tensor would copy the whole of it on its way to numpy
        whole, other = (memory_of(t.detach().cpu()) for t in (weights, others))
        step = max(1, _COMPARED * len(whole) // max(whole.size, 1))
        parts = (slice(start, start + step) for start in range(0, len(whole), step))
        return cls.of(cls.between(_widened(whole[part]), _widened(other[part])) for part in parts)

    @property
    def sqnr_db(self) -> float:
        """Signal to noise in dB; infinite where nothing was lost, or nothing was there."""
        return 10 * math.log10(self.signal / self.noise) if self.signal and self.noise else math.inf


def _widened(values: Array) -> Floats:
    """Numbers in float32; of bfloat16 they come as bits."""
    return bfloat16_to_float32(values) if values.dtype == np.uint16 else values.astype(np.float32, copy=False)


@runtime_checkable
class MeasuredRounding(Protocol):
    """A layer that may know what quantization changed in a weight of it, as it was measured when the weight was quantized."""

    def measured_error(self, parameter: str) -> RoundingError | None:
        """Of the weight ``parameter``; None: it was not measured."""


class Quantized(NamedTuple):
    """Quantized values int8 [.., rows, I], in 4 bits two outputs to a row, and scales float32 [.., O, G]; a scale is NaN or
    infinite where a weight of its group is. ``error``: of what was measured."""

    values: Tensor
    scales: Tensor
    error: RoundingError


def quantize_weight(weight: Tensor, quant_dtype: str, group: int) -> Quantized:
    """``weight`` [.., I, O], which is in the memory of the host and not empty. The error is not measured.

    Args:
        quant_dtype: ``int8``, ``int4`` or ``nf4``. group: inputs that share a scale; 0: all of an output.
    """
    made, values, scales = _empty(weight.shape, quant_dtype, group)
    wide = weight.detach() if weight.dtype == paddle.float32 else weight.detach().astype("float32")
    matrices = memory_of(wide).reshape([-1, *weight.shape[-2:]])
    tasks = [(m, *outputs) for m, matrix in enumerate(matrices) for outputs in _blocks(*matrix.shape)]

    def block(place: tuple[int, int, int]) -> None:
        m, start, stop = place
        _block(matrices[m][:, start:stop], "float32", quant_dtype, group).write(values[m], scales[m], start)

    parallel_map(block, tasks, weight)
    return made


def quantize_parts(parts: Iterable[Array], dtype: str, shape: Sequence[int], quant_dtype: str, group: int) -> Quantized:
    """A weight of ``shape`` [.., I, O], not empty, that comes part by part; each is dropped before the next.

    Args:
        parts: arrays [I, O] or [e, I, O] of ``dtype`` ``float32``, ``float16`` or ``bfloat16`` (bits), with any strides, such as
            ``stored.T``.
    """
    made, values, scales = _empty(shape, quant_dtype, group)
    matrices = (matrix for part in parts for matrix in (part if part.ndim == 3 else [part]))
    errors = [
        quantize_matrix(matrix, dtype, quant_dtype, group, values[m], scales[m]) for m, matrix in enumerate(matrices)
    ]
    return made._replace(error=RoundingError.of(errors))


@replaceable
def quantize_matrix(
    weight: Array, dtype: str, quant_dtype: str, group: int, values: Array, scales: Array
) -> RoundingError:
    """Write the quantized ``weight`` [I, O] into ``values`` int8 [rows, I] and ``scales`` float32 [O, G]."""

    def block(outputs: tuple[int, int]) -> RoundingError:
        found = _block(weight[:, slice(*outputs)], dtype, quant_dtype, group)
        found.write(values, scales, outputs[0])
        return found.error()

    return RoundingError.of(parallel_map(block, _blocks(*weight.shape), weight))


def _empty(shape: Sequence[int], quant_dtype: str, group: int) -> tuple[Quantized, Array, Array]:
    """The result, and views of its memory, matrix by matrix."""
    *stack, inputs, outputs = shape
    rows, groups = outputs if quant_dtype == "int8" else (outputs + 1) // 2, -(-inputs // group) if group else 1
    values, scales = paddle.empty([*stack, rows, inputs], "int8"), paddle.empty([*stack, outputs, groups])
    memory = memory_of(values).reshape([-1, rows, inputs]), memory_of(scales).reshape([-1, outputs, groups])
    return Quantized(values, scales, RoundingError(0.0, 0.0, 0.0)), *memory


def _blocks(inputs: int, outputs: int) -> list[tuple[int, int]]:
    """Outputs of each block, an even number."""
    step = max(2, BLOCK // inputs // 2 * 2)
    return [(start, min(start + step, outputs)) for start in range(0, outputs, step)]


class _Block(NamedTuple):
    """Some outputs of a matrix as it lies: [I, o], or [o, I] where ``turned``.

    Attributes:
        weights: float32. values: int8, of the same shape. scales: [G, 1, o] or [o, G, 1].
        spare: float32 memory, whose inputs are filled up to whole groups; grouped: a view of it, [G, g, o] or [o, G, g].
    """

    weights: Floats
    values: NDArray[np.int8]
    scales: Floats
    spare: Floats
    grouped: Floats
    turned: bool
    quant_dtype: str

    def write(self, values: Array, scales: Array, start: int) -> None:
        """Into those of the matrix, where the first output is number ``start``."""
        scale = self.scales[:, :, 0] if self.turned else self.scales[:, 0].T
        scales[start : start + len(scale)] = scale
        if self.quant_dtype == "int8":
            values[start : start + len(scale)] = self.values if self.turned else self.values.T
        else:
            pairs = _pairs(self.values) if self.turned else _pairs(self.values.T)
            values[start // 2 : start // 2 + len(pairs)] = pairs

    def error(self) -> RoundingError:
        """See :class:`RoundingError`; takes the spare memory."""
        inside = self.spare[: len(self.weights), : self.weights.shape[1]]
        inside[...] = _LEVELS[self.values + 8] if self.quant_dtype == "nf4" else self.values
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(self.grouped, self.scales, out=self.grouped)
        return RoundingError.between(self.weights, inside)


def _block(weight: Array, dtype: str, quant_dtype: str, group: int) -> _Block:
    """``weight`` [I, o] of a matrix; what a short last group lacks is zero."""
    turned = abs(weight.strides[0]) < abs(weight.strides[1])
    weight = weight.T if turned else weight
    wide = bfloat16_to_float32(weight) if dtype == "bfloat16" else weight.astype(np.float32, copy=False)
    rows, columns = wide.shape
    each = group or (columns if turned else rows)
    if turned:
        spare = np.zeros([rows, -(-columns // each) * each], np.float32)
        grouped, axis = spare.reshape([rows, -1, each]), 2
    else:
        spare = np.zeros([-(-rows // each) * each, columns], np.float32)
        grouped, axis = spare.reshape([-1, each, columns]), 1
    inside = spare[:rows, :columns]
    inside[...] = wide
    with np.errstate(invalid="ignore", over="ignore"):
        scales: Floats = np.abs(grouped).max(axis=axis, keepdims=True) / np.float32(TOP[quant_dtype])
        scales[scales == 0] = 1
        grouped /= scales
        found = _counted(inside) if quant_dtype == "nf4" else _rounded(inside, TOP[quant_dtype])
    return _Block(wide, found, scales, spare, grouped, turned, quant_dtype)


def _rounded(ratio: Floats, top: float) -> NDArray[np.int8]:
    """Half to even, in place."""
    np.rint(ratio, out=ratio)
    np.clip(ratio, -top, top, out=ratio)
    return ratio.astype(np.int8)


def _counted(ratio: Floats) -> NDArray[np.int8]:
    """How many middles are smaller, from -8 on."""
    found = np.full(ratio.shape, -8, np.int8)
    for middle in np.array(NF4_MIDDLES, np.float32):
        found += ratio > middle
    return found


def _pairs(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """[o, I] -> [ceil(o / 2), I]: two rows in a byte; what a last one lacks is 0. In the order in which ``values`` lies."""
    if len(values) % 2:
        values = np.pad(values, ((0, 1), (0, 0)))
    both = values.view(np.uint8)
    stored: NDArray[np.int8] = ((both[0::2] & np.uint8(15)) | (both[1::2] << np.uint8(4))).view(np.int8)
    return stored


def _squares(values: Floats) -> float:
    wide = values.astype(np.float64).ravel()
    return float(np.dot(wide, wide))
