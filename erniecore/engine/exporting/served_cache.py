"""The scales of a cache of codes as FastDeploy reads them: beside quantised weights in the Paddle layout, int8 per channel.

``ernie.layers.N.self_attn.cachek_matmul.activation_scale`` and ``.cachev_matmul.activation_scale`` [heads * d] float32 hold
the largest size of each channel; the server rounds x 127 / size. Sources: ``fastdeploy_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from erniecore.checkpoint.tensors import Tensor
from erniecore.engine.exporting.fastdeploy_contract import CACHE_SCALES, CACHE_TYPE, MIX
from erniecore.engine.generation.cache import codec_of
from erniecore.errors import UsageError
from erniecore.types import ModelBundle

_Refused = Callable[[str, str, str], UsageError]


def with_cache(
    bundle: ModelBundle, tensors: Mapping[str, Tensor], section: Mapping[str, Any], refused: _Refused
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``tensors`` and ``quantization_config`` of a directory, with the cache of ``bundle``'s model where it holds codes.

    Raises:
        UsageError: codes or scales that the server does not have.
    """
    codec = codec_of(bundle.model)
    if codec is None:
        return dict(tensors), dict(section)
    if codec.form != "int8" or not codec.static:
        scales = "fixed scales" if codec.static else "scales of each position"
        raise refused(f"a cache of {codec.form} with {scales}", "int8 with scales from calibration", "quantizer.cache")
    found = dict(tensors)
    for layer in range(int(bundle.architecture["num_hidden_layers"])):
        for part, name in CACHE_SCALES.items():
            largest = codec.largest(layer, part).numpy().astype(np.float32).reshape([-1])
            found[f"ernie.layers.{layer}.self_attn.{name}"] = Tensor("F32", largest.shape, largest.copy)
    dense = section.get("dense_quant_type", section["quantization"])
    types = {"dense_quant_type": dense, "moe_quant_type": section.get("moe_quant_type", dense)}
    return found, {**section, "quantization": MIX, **types, "kv_cache_quant_type": CACHE_TYPE}


def check_no_cache(bundle: ModelBundle, refused: _Refused) -> None:
    """Raises ``UsageError`` where a cache of codes would be lost: the public layout has no place for its scales."""
    if codec_of(bundle.model) is not None:
        expected = "int8 or tensor-wise FP8 weights beside it"
        raise refused("a cache of codes in the public layout", expected, "quantizer.cache")
