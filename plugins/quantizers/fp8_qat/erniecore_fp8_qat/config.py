"""The ``quantizer`` sections of ``fp8-qat``, ``fp8-block``, ``w8a8-qat`` and ``w4a8-qat``. Knows no model and no tensors."""

from __future__ import annotations

from typing import Literal

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class Fp8Config(Patterns):
    """Which layers compute in FP8. Embeddings, routers, norms and heads never do."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"What computes in FP8. {PATTERNS}`*`: every linear layer and routed expert."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers that stay as they are, whatever `layers` says."
    )

    def scale_schedule(self) -> tuple[int, float]:
        """(steps with a scale of their own, rate of the moving mean after them) of the scales of inputs; (0, 1): every batch
        has its own."""
        return 0, 1.0


class StaticConfig(Fp8Config):
    """One fixed scale for the inputs of a layer."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        32,
        description="Inputs are mixed in blocks of this size before they are rounded, which spreads outliers. Where the \
width of a layer is no multiple, the largest power of two that divides it. 0: not at all.",
    )
    scale_warmup: int = Field(
        200,
        ge=0,
        description="Steps in which each batch has its own input scale while their mean is taken; then the moving mean \
is used, and moves on.",
    )
    scale_rate: float = Field(0.01, gt=0, le=1, description="Share of a step in the moving mean of input scales.")

    def scale_schedule(self) -> tuple[int, float]:
        """``scale_warmup`` and ``scale_rate`` as they are set."""
        return self.scale_warmup, self.scale_rate


class IntConfig(StaticConfig):
    """Integer codes: a scale per output of a weight, one fixed scale for the inputs of a layer."""


class QatConfig(StaticConfig):
    """One scale per weight, one fixed scale for the inputs of a layer: what servers call static W8A8."""

    fused_scales: bool = Field(
        True,
        description="One scale for the weights of q, k and v, and one for those of gate and up, because servers lay them side \
by side as one matrix. Off: a scale for each, and an export for FastDeploy rounds some codes again.",
    )
    input_gradient: Literal["exact", "e5m2"] = Field(
        "exact", description="Round the gradient of a layer's output to E5M2 for the gradient of its input."
    )
    weight_gradient: Literal["exact", "e5m2"] = Field(
        "exact",
        description="Round the gradient of a layer's output to E5M2 for the gradient of its weight, with inputs rounded as \
in the forward pass.",
    )


class BlockConfig(Fp8Config):
    """Scales that are powers of two: one per 128 inputs of a row, one per 128x128 of a weight; none is kept."""

    weight_gradient: Literal["exact", "e4m3"] = Field(
        "e4m3", description="Whether the product that gives a weight's gradient is in FP8 too, like the others."
    )
