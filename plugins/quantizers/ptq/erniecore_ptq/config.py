"""The ``quantizer`` sections of ``gptq``, ``awq``, ``fp8-ptq``, ``w8a8``, ``w4a8`` and ``kv-cache``. Knows no model and no
tensors.
"""

from __future__ import annotations

from typing import Literal

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class CacheConfig(Patterns):
    """Settings of a quantized KV cache."""

    cache: Literal["none", "int8", "int4", "fp8"] = Field(
        "none", description="Quant dtype of the KV cache; `none`: unquantized."
    )
    cache_scales: Literal["static", "dynamic"] = Field(
        "static",
        description="Scales of the KV cache. `static`: per channel of each head, from the calibration data. `dynamic`: per \
position and head, stored in the cache.",
    )


class KvConfig(CacheConfig):
    """A quantized KV cache, with weights that need no calibration."""

    cache: Literal["int8", "int4", "fp8"] = Field("int8", description="Quant dtype of the KV cache.")
    weights: Literal["none", "wint8", "wint4", "wint4-8"] = Field(
        "none", description="Quantizer of the weights, with its default settings; `none`: unquantized."
    )


class PtqConfig(CacheConfig):
    """Layers to quantize. Embeddings, routers, norms and heads are never quantized."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"Layers to quantize. {PATTERNS}`*`: every linear layer and expert."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers to leave unquantized; takes precedence over `layers`."
    )


class IntConfig(PtqConfig):
    """Integer weights with a scale per group of inputs."""

    bits: Literal[4, 8] = Field(4, description="Bits per weight.")
    group_size: int = Field(
        128,
        ge=0,
        description="Consecutive inputs of an output that share a scale. 0: all of them, one scale per output.",
    )


class GptqConfig(IntConfig):
    """GPTQ, second-order error compensation (arXiv:2210.17323)."""

    damping: float = Field(
        0.01,
        gt=0,
        description="Damping: fraction of the mean diagonal of the Hessian that is added to its diagonal.",
    )
    by_activation: bool = Field(
        True,
        description="Quantize the inputs with the largest activations first (`desc_act`).",
    )
    search_scale: bool = Field(
        True, description="Search for the scales with the smallest error instead of using the maximum."
    )


class AwqConfig(IntConfig):
    """AWQ, activation-aware weight scaling (arXiv:2306.00978)."""

    grid: int = Field(20, ge=1, description="Number of exponents between 0 and 1 in the search for input scales.")


class InputsConfig(PtqConfig):
    """Settings of layers with quantized activations."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        32,
        description="Block size of the Hadamard transform of activations, as in `fp8-qat`. 0: off.",
    )
    activations: Literal["static", "dynamic"] = Field(
        "static",
        description="Activation scales. `static`: one per layer, the maximum over the calibration data. `dynamic`: per batch.",
    )


class Fp8Config(InputsConfig):
    """The scheme of ``fp8-qat``, without training."""

    fused_scales: bool = Field(True, description="Shared scales for weights that servers fuse, as in `fp8-qat`.")


class EightBitConfig(InputsConfig):
    """Integer weights with a scale per output; activations in 8 bits."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        0, description="Block size of the Hadamard transform of activations. 0: off."
    )
    activations: Literal["static", "dynamic"] = Field(
        "static",
        description="Activation scales. `static`: one per layer, the maximum over the calibration data. `dynamic`: per token.",
    )
    smoothing: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Migration strength of SmoothQuant (arXiv:2211.10438): moves outliers from activations to weights. 0: off.",
    )
