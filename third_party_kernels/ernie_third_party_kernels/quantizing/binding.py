"""Quantization of matrices in numpy arrays, such as views of mapped files."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.packed_weights.levels import NF4
from ernie_third_party_kernels.tensors import Kernel, Threads, team

_KINDS = {"int8": 0, "int4": 1, "nf4": 2}
#: dtype -> numpy dtype of its arrays
_DTYPES = {"bfloat16": np.dtype(np.uint16), "float32": np.dtype(np.float32)}
_MIDDLES = np.array([(a + b) / 2 for a, b in pairwise(NF4)], np.float32)

Array = NDArray[Any]


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``quantize_matrix`` of ``erniecore_ops``."""
    arguments = [COUNT, COUNT, POINTER, SIZE, SIZE, SIZE, POINTER, POINTER, POINTER, POINTER, COUNT]
    quantize_ = function(library, "quantize_outputs", arguments)

    def quantize_matrix(
        weight: Array, dtype: str, quant_dtype: str, group: int, values: Array, scales: Array
    ) -> tuple[float, float, float]:
        I, O = weight.shape  # noqa: E741
        errors = np.empty([len(values), 3])
        given = _KINDS[quant_dtype], int(dtype == "float32"), weight.ctypes.data, O, I, group, _MIDDLES.ctypes.data
        made = values.ctypes.data, scales.ctypes.data, errors.ctypes.data
        quantize_(*given, *made, team(threads, weight.size))
        signal, noise = errors[:, :2].sum(axis=0)
        return float(signal), float(noise), float(errors[:, 2].max())

    return {"quantize_matrix": Kernel(quantize_matrix, _supports)}


def _supports(weight: Array, dtype: str, quant_dtype: str, group: int, values: Array, scales: Array) -> bool:
    """Whether outputs come first and one after another, and what is written has the size of what is read."""
    whole = weight.ndim == 2 and weight.size > 0 and weight.T.flags.c_contiguous and weight.flags.aligned
    if not whole or weight.dtype != _DTYPES.get(dtype) or quant_dtype not in _KINDS or group < 0:
        return False
    inputs, outputs = weight.shape
    rows, groups = outputs if quant_dtype == "int8" else (outputs + 1) // 2, -(-inputs // group) if group else 1
    fits = values.shape == (rows, inputs) and scales.shape == (outputs, groups)
    return fits and all(
        array.dtype == dtype and array.flags.c_contiguous for array, dtype in ((values, np.int8), (scales, np.float32))
    )
