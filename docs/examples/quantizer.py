"""Rounds the weights of linear layers to a number of bits; they stay in floating point."""

from typing import Any

from erniecore.api import Field, hookimpl
from erniecore.api.quantizer import QuantizerCapability, QuantizerConfig, QuantizerPlugin


class RoundedConfig(QuantizerConfig):
    """Section ``quantizer`` of the settings."""

    bits: int = Field(8, ge=2, le=8, description="Bits per weight.")


class Rounded(QuantizerPlugin):
    """One scale per output."""

    name, summary, Config = "rounded", "rounded weights", RoundedConfig
    capabilities = frozenset({QuantizerCapability.TRAIN})

    @hookimpl
    def ernie_quantize_model(self, config: RoundedConfig, model: Any, phase: str) -> Any:
        from paddle import nn

        for layer in model.sublayers():
            if isinstance(layer, nn.Linear):
                scale = layer.weight.abs().max(axis=0, keepdim=True) / (2 ** (config.bits - 1) - 1)
                layer.weight.set_value((layer.weight / scale).round() * scale)
                layer.weight.stop_gradient = True
        return model


plugin = Rounded()
