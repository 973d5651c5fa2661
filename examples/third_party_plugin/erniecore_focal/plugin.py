"""The plugin object of the method `focal`: what is learned from which samples."""

from __future__ import annotations

from typing import Any

from erniecore.api import Field, hookimpl
from erniecore.api.method import Encoder, MethodConfig, MethodPlugin, Objective, Tokenizer


class FocalConfig(MethodConfig):
    """Section `method` of the settings when this method is chosen."""

    gamma: float = Field(2.0, ge=0, description="How much less well-predicted tokens count; 0: all the same.")


class FocalPlugin(MethodPlugin):
    """Learns the assistant's turns."""

    name = "focal"
    summary = "supervised fine-tuning with the focal loss"
    Config = FocalConfig

    @hookimpl
    def ernie_build_objective(self, config: FocalConfig, policy: Any) -> Objective:
        from erniecore_focal.objective import FocalObjective

        return FocalObjective(policy, gamma=config.gamma)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        from erniecore_focal.encoder import FocalEncoder

        return FocalEncoder(tokenizer, max_length)


plugin = FocalPlugin()
