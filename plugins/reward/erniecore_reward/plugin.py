"""The plugin object of reward. What it builds is imported inside the hooks."""

from __future__ import annotations

from typing import Any

from erniecore.api import Encoder, Objective, Plugin, Tokenizer, hookimpl


class RewardPlugin(Plugin):
    """Reward model: a scalar head learned from pairs."""

    kind, name = "method", "reward"
    summary = "Reward model: a scalar head learned from pairs"

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """The loss."""
        raise NotImplementedError

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Records to samples."""
        raise NotImplementedError


plugin = RewardPlugin()
