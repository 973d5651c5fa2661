"""The scales of a quantized KV cache as FastDeploy reads them: beside quantized weights in the Paddle layout, int8 per channel.

``ernie.layers.N.self_attn.cachek_matmul.activation_scale`` and ``.cachev_matmul.activation_scale`` [heads * d] float32 hold
the largest size of each channel; the server rounds x 127 / size. Sources: ``contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from erniecore.api import UsageError
from erniecore.api.export import ModelBundle
from erniecore.api.model_files import StoredTensor, codec_of
from erniecore_fastdeploy.contract import CACHE_SCALES, CACHE_TYPE, MIX

_Refused = Callable[[str, str, str], UsageError]


def with_cache(
    bundle: ModelBundle, tensors: Mapping[str, StoredTensor], section: Mapping[str, Any], refused: _Refused
) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """``tensors`` and ``quantization_config`` of a directory, with the cache of ``bundle``'s model where it holds codes.

    Raises:
        UsageError: a quant dtype or scales that the server does not support.
    """
    codec = codec_of(bundle.model)
    if codec is None:
        return dict(tensors), dict(section)
    if codec.quant_dtype != "int8" or not codec.static:
        scales = "fixed scales" if codec.static else "scales of each position"
        raise refused(
            f"a cache of {codec.quant_dtype} with {scales}", "int8 with scales from calibration", "quantizer.cache"
        )
    found = dict(tensors)
    for layer in range(int(bundle.architecture["num_hidden_layers"])):
        for part, name in CACHE_SCALES.items():
            largest = codec.largest(layer, part).numpy().astype(np.float32).reshape([-1])
            found[f"ernie.layers.{layer}.self_attn.{name}"] = StoredTensor("F32", largest.shape, largest.copy)
    dense = section.get("dense_quant_type", section["quantization"])
    types = {"dense_quant_type": dense, "moe_quant_type": section.get("moe_quant_type", dense)}
    return found, {**section, "quantization": MIX, **types, "kv_cache_quant_type": CACHE_TYPE}


def check_no_cache(bundle: ModelBundle, refused: _Refused) -> None:
    """Raises ``UsageError`` where a quantized KV cache would be lost: the Hugging Face format has no place for its scales."""
    if codec_of(bundle.model) is not None:
        expected = "int8 or tensor-wise FP8 weights beside it"
        raise refused("a quantized KV cache in the Hugging Face format", expected, "quantizer.cache")
