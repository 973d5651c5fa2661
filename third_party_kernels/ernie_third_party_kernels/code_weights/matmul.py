"""Matmuls with weights that are convolutional codes, on Paddle's tensors: for ``packed_weights``, whose functions take these
quant dtypes too. Of a weight only the attributes ``quant_dtype``, ``qweight``, ``scales``, ``others``, ``inputs`` and
``outputs`` are read.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, Structure, byref, c_int64, c_void_p
from typing import Any, NamedTuple

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Threads, plain, team

QUANT_DTYPES = {"ccq-2.5": 0, "ccq-2.06": 1}
GROUP = 64
#: rows of codes per group, and their dtype
ROWS = {"ccq-2.5": 10, "ccq-2.06": 16}
DTYPES = {"ccq-2.5": "int16", "ccq-2.06": "uint8"}
#: what stands beside codes and the scale of an output
OTHERS: dict[str, tuple[str, ...]] = {"ccq-2.5": (), "ccq-2.06": ("weight_scale", "code_scale", "code_zp")}


class Stored(Structure):
    """The C struct ``Stored`` of the kernel."""

    _fields_ = [
        *((name, c_void_p) for name in ("codes", "super", "local", "code_scale", "code_zp")),
        ("step", c_int64),
        ("local_step", c_int64),
    ]


class Calls(NamedTuple):
    """``dequantize(weight)``, and ``matmul(x, weight, experts, starts)`` as in ``packed_weights``."""

    dequantize: Callable[[Any], Tensor]
    matmul: Callable[[Tensor, Any, Any, Any], Tensor]


def calls(library: CDLL, threads: Threads) -> Calls:
    """Both functions, bound to the kernels of ``library``."""
    matmul_ = function(library, "code_product", [COUNT] + [POINTER] * 4 + [SIZE] * 3 + [POINTER, COUNT])
    dequantize_ = function(library, "code_numbers", [COUNT, POINTER] + [SIZE] * 3 + [POINTER, COUNT])

    def dequantize(weight: Any) -> Tensor:
        stack = weight.qweight.shape[:-2]
        E, I, O = stack[0] if stack else 1, weight.inputs, weight.outputs  # noqa: E741
        w = paddle.empty([*stack, O, I], "float32")
        dequantize_(
            QUANT_DTYPES[weight.quant_dtype], byref(_stored(weight)), E, I, O, w.data_ptr(), team(threads, E * I * O)
        )
        return w

    def matmul(x: Tensor, weight: Any, experts: Any, starts: Any) -> Tensor:
        N, I, O = x.shape[0], weight.inputs, weight.outputs  # noqa: E741
        y = paddle.empty([N, O], "float32")
        where = None if experts is None else experts.ctypes.data, starts.ctypes.data, len(starts) - 1
        stored = byref(_stored(weight))
        matmul_(
            QUANT_DTYPES[weight.quant_dtype], stored, x.data_ptr(), *where, I, O, y.data_ptr(), team(threads, N * I * O)
        )
        return y

    return Calls(dequantize, matmul)


def fits(weight: Any) -> bool:
    """Whether codes and scales lie as the kernel reads them; of a matrix also some of its outputs."""
    quant_dtype = weight.quant_dtype
    if quant_dtype not in QUANT_DTYPES or not all(name in weight.others for name in OTHERS[quant_dtype]):
        return False
    qweight, groups, O = weight.qweight, -(-weight.inputs // GROUP), weight.outputs  # noqa: E741
    if (
        qweight.ndim not in (2, 3)
        or qweight.shape[-2:] != [ROWS[quant_dtype] * groups, O]
        or O == 0
        or weight.inputs == 0
    ):
        return False
    stack = qweight.shape[:-2]
    floats = [weight.scales, *(weight.others[name] for name in OTHERS[quant_dtype][1:])]
    if not all(plain(t) and t.shape == [*stack, O] for t in floats) or not _rows_lie(qweight, DTYPES[quant_dtype]):
        return False
    local = weight.others.get("weight_scale")
    return local is None or (local.shape == [*stack, (groups + 1) // 2, O] and _rows_lie(local, "uint8"))


def _rows_lie(tensor: Tensor, dtype: str) -> bool:
    """Rows without gaps; between them only where there is one matrix."""
    if tensor.dtype != getattr(paddle, dtype):
        return False
    return bool(tensor.is_contiguous() or (tensor.ndim == 2 and tensor.strides[1] == 1))


def _stored(weight: Any) -> Stored:
    local, slope, start = (weight.others.get(name) for name in OTHERS["ccq-2.06"])
    return Stored(
        weight.qweight.data_ptr(),
        weight.scales.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in (local, slope, start)),
        weight.qweight.strides[-2],
        0 if local is None else local.strides[-2],
    )
