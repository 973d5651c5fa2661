"""Good adapter and quantizer plugins at toy size: a low-rank addition, and weights rounded to eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Field, UsageError, hookimpl
from erniecore.api.adapter import AdapterCapability, AdapterConfig, AdapterPlugin
from erniecore.api.quantizer import QuantizerCapability, QuantizerPlugin

if TYPE_CHECKING:
    from erniecore.api.testing import Layer


class ToyAdapterConfig(AdapterConfig):
    """Section of the toy adapter."""

    rank: int = Field(2, ge=1, description="Inner size.")


class ToyAdapterPlugin(AdapterPlugin):
    """Adds x @ A @ B to the query projections; B starts at zero."""

    name = "toy"
    summary = "a low-rank addition for the conformance kit"
    Config = ToyAdapterConfig
    capabilities = frozenset({AdapterCapability.MERGE})

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Layer) -> Layer:
        from erniecore_conformance.toys.paddle_changes import add_low_rank

        return add_low_rank(model, config.rank)


class ToyQuantizerPlugin(QuantizerPlugin):
    """Rounds the weights of linear layers to eight bits per column."""

    name = "toy"
    summary = "eight-bit weights for the conformance kit"
    capabilities = frozenset({QuantizerCapability.TRAIN, QuantizerCapability.EXPORT})

    @hookimpl
    def ernie_quantize_model(self, model: Layer, phase: str) -> Layer:
        from erniecore_conformance.toys.paddle_changes import fake_quantize, round_weights

        phases = {"train": fake_quantize, "export": round_weights}
        if phase not in phases:
            raise UsageError("unknown phase", found=phase, expected=" or ".join(phases))
        return phases[phase](model)


adapter = ToyAdapterPlugin()
quantizer = ToyQuantizerPlugin()
