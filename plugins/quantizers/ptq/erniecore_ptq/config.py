"""The ``quantizer`` sections of ``gptq``, ``awq``, ``fp8-ptq``, ``w8a8``, ``w4a8`` and ``kv-cache``. Knows no model and no
tensors.
"""

from __future__ import annotations

from typing import Literal

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class CacheConfig(Patterns):
    """Keys and values in the cache while the model generates."""

    cache: Literal["none", "int8", "int4", "fp8"] = Field(
        "none", description="What the cache holds of keys and values instead of their numbers. `none`: the numbers."
    )
    cache_scales: Literal["static", "dynamic"] = Field(
        "static",
        description="`static`: a scale per channel of each head, from the calibration data. `dynamic`: one per position and \
head, stored beside the codes.",
    )


class KvConfig(CacheConfig):
    """The cache, beside weights that need no data."""

    cache: Literal["int8", "int4", "fp8"] = Field("int8", description="What the cache holds of keys and values.")
    weights: Literal["none", "wint8", "wint4", "wint4-8"] = Field(
        "none", description="Weights as this quantizer packs them with its usual settings. `none`: as they are."
    )


class PtqConfig(CacheConfig):
    """Which layers are quantized. Embeddings, routers, norms and heads never are."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"What is packed. {PATTERNS}`*`: every linear layer and expert."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers that stay as they are, whatever `layers` says."
    )


class IntConfig(PtqConfig):
    """Integer codes with a scale per group of inputs."""

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
        description="Share of the mean that is added to the diagonal of the Hessian, so that it can be inverted.",
    )
    by_activation: bool = Field(
        True,
        description="Round the inputs with the largest activations first, while most of the others can still give way.",
    )
    search_scale: bool = Field(True, description="Choose scales of least error instead of those of the largest weight.")


class AwqConfig(IntConfig):
    """AWQ, activation-aware weight scaling (arXiv:2306.00978)."""

    grid: int = Field(20, ge=1, description="Exponents between 0 and 1 that are tried for the scales of inputs.")


class InputsConfig(PtqConfig):
    """Layers whose inputs are rounded as well."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        32,
        description="As in `fp8-qat`: inputs are mixed in blocks of this size before they are rounded. 0: not at all.",
    )
    activations: Literal["static", "dynamic"] = Field(
        "static",
        description="`static`: one scale per layer, the largest that the calibration data asked for. `dynamic`: each batch \
has its own.",
    )


class Fp8Config(InputsConfig):
    """The form of ``fp8-qat``, without training."""

    fused_scales: bool = Field(True, description="As in `fp8-qat`: one scale for what servers lay side by side.")


class EightBitConfig(InputsConfig):
    """Integer weights, a scale per output; inputs in eight bits."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        0, description="Inputs are mixed in blocks of this size before they are rounded. 0: not at all."
    )
    activations: Literal["static", "dynamic"] = Field(
        "static",
        description="`static`: one scale per layer, the largest that the calibration data asked for. `dynamic`: each token \
has its own.",
    )
    smoothing: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the size of outliers that is moved from inputs to weights before both are rounded \
(SmoothQuant, arXiv:2211.10438). 0: none.",
    )
