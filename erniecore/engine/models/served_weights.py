"""Weights of directories that were quantised for servers, as numbers: FP8 by blocks (``weight_scale_inv``) and FP8 with a scale
per tensor (``quant_weight``). What they hold is decoded tensor by tensor; other forms stay as they are and are refused by
their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from erniecore.checkpoint.tensors import Array, Tensor

#: size of the Hadamard transform in FastDeploy's static FP8
HADAMARD = 32
#: scales of a cache of codes: how it is stored changes no weight
_CACHE = (".cachek_matmul.activation_scale", ".cachev_matmul.activation_scale")
_INVERSE, _CODES, _SCALES = "_scale_inv", ".quant_weight", (".weight_scale", ".activation_scale")


def decoded(stored: Mapping[str, tuple[Path, Tensor]]) -> dict[str, tuple[Path, Tensor]]:
    """``stored`` with numbers in the place of codes and scales."""
    found: dict[str, tuple[Path, Tensor]] = {}
    for name, (path, tensor) in stored.items():
        module, _, kind = name.rpartition(".")
        if tensor.dtype == "F8_E4M3" and name + _INVERSE in stored:
            scale = stored[name + _INVERSE][1]
            found[name] = (path, Tensor("F32", tensor.shape, partial(_blocks, tensor, scale)))
        elif name.endswith(_CODES) and tensor.dtype == "I8" and module + _SCALES[0] in stored:
            scale = stored[module + _SCALES[0]][1]
            found[f"{module}.weight"] = (path, Tensor("F32", tensor.shape, partial(_static, tensor, scale)))
        elif not (name.endswith((_INVERSE, *_CACHE)) or (f".{kind}" in _SCALES and module + _CODES in stored)):
            found[name] = (path, tensor)
    return found


def _blocks(codes: Tensor, scales: Tensor) -> Array:
    return decode_blocks(codes.load(), scales.load())


def _static(codes: Tensor, scale: Tensor) -> Array:
    return decode_static(codes.load(), float(scale.load()[0]))


def decode_blocks(codes: Array, scales: Array) -> Array:
    """What codes stand for, float32."""
    import paddle

    numbers = paddle.to_tensor(np.ascontiguousarray(codes)).view("float8_e4m3fn").astype("float32").numpy()
    sides = [-(-size // count) for size, count in zip(codes.shape, scales.shape, strict=True)]
    spread = np.repeat(np.repeat(scales, sides[0], axis=0), sides[1], axis=1)
    found: Array = numbers * spread[: codes.shape[0], : codes.shape[1]]
    return found


def decode_static(codes: Array, scale: float) -> Array:
    """What stored codes int8 [in, out] stand for, float32, out of the Hadamard basis."""
    import paddle

    from erniecore.ops import hadamard

    turned = (
        paddle.to_tensor(np.ascontiguousarray(codes).view(np.uint8)).view("float8_e4m3fn").astype("float32") * scale
    )
    found: Array = hadamard(turned.transpose([1, 0]), HADAMARD).transpose([1, 0]).numpy()
    return found
