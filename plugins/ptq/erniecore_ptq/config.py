"""The ``quantizer`` sections of ``gptq``, ``awq`` and ``fp8-ptq``. Knows no model and no tensors."""

from __future__ import annotations

from typing import Literal

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class PtqConfig(Patterns):
    """Which layers are quantised. Embeddings, routers, norms and heads never are."""

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
    """arXiv:2210.17323."""

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
    """arXiv:2306.00978."""

    grid: int = Field(20, ge=1, description="Exponents between 0 and 1 that are tried for the scales of inputs.")


class Fp8Config(PtqConfig):
    """The form of ``fp8-qat``, without training."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        32,
        description="As in `fp8-qat`: inputs are mixed in blocks of this size before they are rounded. 0: not at all.",
    )
    activations: Literal["static", "dynamic"] = Field(
        "static",
        description="`static`: one scale per layer, the largest that the calibration data asked for. `dynamic`: each batch \
has its own.",
    )
