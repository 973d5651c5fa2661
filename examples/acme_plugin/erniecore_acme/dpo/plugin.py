"""The plugin object of the method `acme-dpo`. Light: encoder and objective are imported when they are built."""

from __future__ import annotations

from typing import Any

from erniecore.api import Field, hookimpl
from erniecore.api.method import Encoder, MethodCapability, MethodConfig, MethodPlugin, Objective, Tokenizer


class AcmeDpoConfig(MethodConfig):
    """Section `method` of the settings when this method is chosen."""

    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the reference.")
    margin: float = Field(0.0, ge=0, description="By how much a completion must be better to count as learned.")


class AcmeDpoPlugin(MethodPlugin):
    """Learns from pairs of completions."""

    name = "acme-dpo"
    summary = "direct preference optimization with a margin"
    Config = AcmeDpoConfig
    #: the engine keeps a frozen copy of the model and hands it over as `reference`
    capabilities = frozenset({MethodCapability.REFERENCE})

    @hookimpl
    def ernie_build_objective(self, config: AcmeDpoConfig, policy: Any, reference: Any) -> Objective:
        from erniecore_acme.dpo.objective import AcmeDpoObjective

        return AcmeDpoObjective(policy, reference, beta=config.beta, margin=config.margin)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        from erniecore_acme.dpo.encoder import AcmeDpoEncoder

        return AcmeDpoEncoder(tokenizer, max_length)


plugin = AcmeDpoPlugin()
