"""Dequantizes weights of directories that were quantized for servers: block-wise FP8 (``weight_scale_inv``) and tensor-wise FP8
(``quant_weight``), tensor by tensor. Tensors with another scheme are left as they are, and refused later by their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from erniecore_checkpoint.tensors import Array, Tensor

#: size of the Hadamard transform in FastDeploy's static FP8
HADAMARD = 32
#: scales of a quantized KV cache, which do not change any weight
_CACHE = (".cachek_matmul.activation_scale", ".cachev_matmul.activation_scale")
_INVERSE, _QWEIGHT, _SCALES = "_scale_inv", ".quant_weight", (".weight_scale", ".activation_scale")


def decoded(stored: Mapping[str, tuple[Path, Tensor]]) -> dict[str, tuple[Path, Tensor]]:
    """``stored`` with dequantized weights in place of quantized values and scales."""
    found: dict[str, tuple[Path, Tensor]] = {}
    for name, (path, tensor) in stored.items():
        module, _, kind = name.rpartition(".")
        if tensor.dtype == "F8_E4M3" and name + _INVERSE in stored:
            scale = stored[name + _INVERSE][1]
            found[name] = (path, Tensor("F32", tensor.shape, partial(_blocks, tensor, scale)))
        elif name.endswith(_QWEIGHT) and tensor.dtype == "I8" and module + _SCALES[0] in stored:
            scale = stored[module + _SCALES[0]][1]
            found[f"{module}.weight"] = (path, Tensor("F32", tensor.shape, partial(_static, tensor, scale)))
        elif not (name.endswith((_INVERSE, *_CACHE)) or (f".{kind}" in _SCALES and module + _QWEIGHT in stored)):
            found[name] = (path, tensor)
    return found


def _blocks(qweight: Tensor, scales: Tensor) -> Array:
    return decode_blocks(qweight.load(), scales.load())


def _static(qweight: Tensor, scale: Tensor) -> Array:
    return decode_static(qweight.load(), float(scale.load()[0]))


def decode_blocks(qweight: Array, scales: Array) -> Array:
    """Dequantized block-wise FP8 weights, float32."""
    import paddle

    dequantized = paddle.to_tensor(np.ascontiguousarray(qweight)).view("float8_e4m3fn").astype("float32").numpy()
    sides = [-(-size // count) for size, count in zip(qweight.shape, scales.shape, strict=True)]
    spread = np.repeat(np.repeat(scales, sides[0], axis=0), sides[1], axis=1)
    found: Array = dequantized * spread[: qweight.shape[0], : qweight.shape[1]]
    return found


def decode_static(qweight: Array, scale: float) -> Array:
    """Dequantized tensor-wise FP8 weights, stored as int8 [in, out]: float32, with the Hadamard transform undone."""
    import paddle
    from erniecore_ops.fp8 import hadamard

    transformed = (
        paddle.to_tensor(np.ascontiguousarray(qweight).view(np.uint8)).view("float8_e4m3fn").astype("float32") * scale
    )
    found: Array = hadamard(transformed.transpose([1, 0]), HADAMARD).transpose([1, 0]).numpy()
    return found
