"""The ``quantizer`` sections of ``fp8-qat``, ``fp8-block``, ``w8a8-qat`` and ``w4a8-qat``. Knows no model and no tensors."""

from __future__ import annotations

from typing import Literal

from erniecore_weight_only.config import PATTERNS, Patterns

from erniecore.api import Field


class Fp8Config(Patterns):
    """Layers that compute in FP8. Embeddings, routers, norms and heads never do."""

    layers: tuple[str, ...] = Field(
        ("*",), description=f"Layers that compute in FP8. {PATTERNS}`*`: every linear layer and routed expert."
    )
    ignore: tuple[str, ...] = Field(
        ("*out_linear*",), description="Patterns of layers to leave unquantized; takes precedence over `layers`."
    )

    def scale_schedule(self) -> tuple[int, float]:
        """(warmup steps with a scale per batch, rate of the moving average after them) of activation scales; (0, 1): dynamic
        scales."""
        return 0, 1.0

    def scales_of_rows(self) -> dict[str, str]:
        """Settings whose scales are of gradients of several positions together -> of what."""
        return {}


class StaticConfig(Fp8Config):
    """Settings of static activation scales, one per layer."""

    hadamard_block: Literal[0, 1, 2, 4, 8, 16, 32, 64, 128] = Field(
        32,
        description="Block size of the Hadamard transform of activations, which spreads outliers. If the width of a layer is not \
a multiple, the largest power of two that divides it. 0: off.",
    )
    scale_warmup: int = Field(
        200,
        ge=0,
        description="Steps with a dynamic activation scale per batch, while their average is collected; afterwards the moving \
average is used and updated.",
    )
    scale_rate: float = Field(0.01, gt=0, le=1, description="Update rate of the moving average of activation scales.")

    def scale_schedule(self) -> tuple[int, float]:
        """``scale_warmup`` and ``scale_rate`` as they are set."""
        return self.scale_warmup, self.scale_rate


class IntConfig(StaticConfig):
    """Integer weights with a scale per output; one static activation scale per layer."""


class QatConfig(StaticConfig):
    """One scale per weight and one static activation scale per layer: static W8A8."""

    fused_scales: bool = Field(
        True,
        description="One scale for q, k and v, and one for gate and up, because servers fuse these weights. `false`: a scale \
for each; an export to FastDeploy then rounds some values again.",
    )
    input_gradient: Literal["exact", "e5m2"] = Field(
        "exact", description="Round output gradients to E5M2 when computing input gradients."
    )
    weight_gradient: Literal["exact", "e5m2"] = Field(
        "exact",
        description="Round output gradients to E5M2 when computing weight gradients, with inputs rounded as in the forward pass.",
    )

    def scales_of_rows(self) -> dict[str, str]:
        """Gradients in E5M2 have one scale."""
        rounded = {"input_gradient": self.input_gradient, "weight_gradient": self.weight_gradient}
        return {key: "the whole gradient, which has one scale" for key, dtype in rounded.items() if dtype != "exact"}


class BlockConfig(Fp8Config):
    """Dynamic power-of-two scales: one per 128 inputs of a token, one per 128x128 block of a weight."""

    weight_gradient: Literal["exact", "e4m3"] = Field(
        "e4m3", description="Dtype of the matrix product of weight gradients; `e4m3` like the others."
    )

    def scales_of_rows(self) -> dict[str, str]:
        """Of a weight's gradient, 128 rows share a scale."""
        return {} if self.weight_gradient == "exact" else {"weight_gradient": "the 128 rows that share a scale"}
