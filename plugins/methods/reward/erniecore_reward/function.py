"""A trained reward model as a reward function. The plugin object is light and stateless; the model is opened once per
process and directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from erniecore.api import ConfigError, Field, Plugin, hookimpl
from erniecore.api.reward import Completion, RewardConfig

if TYPE_CHECKING:
    from erniecore_reward.scoring import RewardModel

_UNNAMED = "name the directory of a reward model: rewards.reward-model.model=DIR"


class RewardModelConfig(RewardConfig):
    """A reward model as a reward function."""

    model: str = Field("", description="Directory of the reward model; it needs the chat template of the policy.")
    batch_size: int = Field(8, ge=1, description="Completions at a time.")

    def other_models(self) -> Sequence[str]:
        """The model that gives the rewards."""
        return (self.model,) if self.model else ()


class RewardModelFunction(Plugin):
    """The reward function that asks a reward model."""

    kind, name = "reward", "reward-model"
    summary = "the reward that a trained reward model gives to a completion"
    Config = RewardModelConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """A run that does not name its reward model ends before it starts. Raises ``ConfigError``."""
        if not settings.rewards["reward-model"].model:
            raise ConfigError.at("rewards.reward-model.model", _UNNAMED)

    @hookimpl
    def ernie_compute_rewards(self, config: RewardModelConfig, completions: Sequence[Completion]) -> Sequence[float]:
        """One reward per completion; one that was cut off is judged as if it had ended there."""
        if not config.model:
            raise ConfigError.at("rewards.reward-model.model", _UNNAMED)
        return opened(config.model, config.batch_size).scores_of_texts([(c.prompt, c.text) for c in completions])


@lru_cache(maxsize=2)
def opened(directory: str, batch_size: int) -> RewardModel:
    """The reward model in ``directory``, on the device that is open."""
    from erniecore_reward.scoring import RewardModel

    return RewardModel.open(directory, device="", batch_size=batch_size)


plugin = RewardModelFunction()
