"""Weights of directories that were quantised for servers, as numbers: FP8 by blocks (``weight_scale_inv``) and FP8 with a scale
per tensor (``quant_weight``). What they hold is decoded tensor by tensor; other forms stay as they are and are refused by
their dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from erniecore.checkpoint.tensors import Array, Tensor

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
        elif not (name.endswith(_INVERSE) or (f".{kind}" in _SCALES and module + _CODES in stored)):
            found[name] = (path, tensor)
    return found


def _blocks(codes: Tensor, scales: Tensor) -> Array:
    from erniecore.engine.exporting.fp8_export import decode

    return decode(codes.load(), scales.load())


def _static(codes: Tensor, scale: Tensor) -> Array:
    from erniecore.engine.models.static_fp8 import numbers

    return numbers(codes.load(), float(scale.load()[0]))
