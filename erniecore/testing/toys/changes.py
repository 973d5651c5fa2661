"""Good adapter and quantizer plugins at toy size: a low-rank addition, and weights rounded to eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.config.section import Field, Section
from erniecore.errors import UsageError
from erniecore.plugin import Plugin, hookimpl

if TYPE_CHECKING:
    from erniecore.types.model import Layer


class ToyAdapterConfig(Section):
    """Section of the toy adapter."""

    rank: int = Field(2, ge=1, description="Inner size.")


class ToyAdapterPlugin(Plugin):
    """Adds x @ A @ B to the query projections; B starts at zero."""

    kind = "adapter"
    name = "toy"
    summary = "a low-rank addition for the conformance kit"
    Config = ToyAdapterConfig
    capabilities = frozenset({"merge"})

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Layer) -> Layer:
        from erniecore.testing.toys.paddle_changes import add_low_rank

        return add_low_rank(model, config.rank)


class ToyQuantizerPlugin(Plugin):
    """Rounds the weights of linear layers to eight bits per column."""

    kind = "quantizer"
    name = "toy"
    summary = "eight-bit weights for the conformance kit"
    capabilities = frozenset({"train", "export"})

    @hookimpl
    def ernie_quantize_model(self, model: Layer, phase: str) -> Layer:
        from erniecore.testing.toys.paddle_changes import fake_quantize, round_weights

        phases = {"train": fake_quantize, "export": round_weights}
        if phase not in phases:
            raise UsageError("unknown phase", found=phase, expected=" or ".join(phases))
        return phases[phase](model)


adapter = ToyAdapterPlugin()
quantizer = ToyQuantizerPlugin()
