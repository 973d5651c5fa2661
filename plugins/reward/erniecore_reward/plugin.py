"""The plugin object of reward models. What it builds is imported inside the hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore.api import Plugin, hookimpl
from erniecore_reward.config import RewardConfig

if TYPE_CHECKING:
    from erniecore.api import Encoder, Objective, Tokenizer


class RewardPlugin(Plugin):
    """Learn a scalar reward from pairs of a preferred and a rejected answer."""

    kind, name = "method", "reward"
    summary = "Reward model: a scalar head that learns which of two answers is better"
    Config = RewardConfig
    capabilities = frozenset({"score-head"})

    @hookimpl
    def ernie_build_objective(self, config: RewardConfig, policy: Any) -> Objective:
        """The Bradley–Terry loss over pairs."""
        from erniecore_reward.objective import RewardObjective

        return RewardObjective(config, policy)

    @hookimpl
    def ernie_build_encoder(self, config: RewardConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Both answers of a pair behind one prompt, read at their end tokens."""
        from erniecore_reward.encoder import RewardEncoder

        return RewardEncoder(tokenizer, max_length, margin=config.margin_weight > 0)


plugin = RewardPlugin()
