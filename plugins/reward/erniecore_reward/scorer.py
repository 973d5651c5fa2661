"""A trained reward model as a scorer of rollouts. The plugin object is light and stateless; the model is opened once per
process and directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from erniecore.api import Attempt, ConfigError, Field, Plugin, ScorerConfig, hookimpl

if TYPE_CHECKING:
    from erniecore_reward.scoring import RewardModel

_UNNAMED = "name the directory of a reward model: scorers.reward-model.model=DIR"


class RewardModelConfig(ScorerConfig):
    """A reward model as a scorer."""

    model: str = Field("", description="Directory of the reward model; it needs the chat template of the policy.")
    batch_size: int = Field(8, ge=1, description="Answers at a time.")


class RewardModelScorer(Plugin):
    """What a reward model says of an answer."""

    kind, name = "scorer", "reward-model"
    summary = "The reward that a trained reward model gives to an answer"
    Config = RewardModelConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """A run that does not name its reward model ends before it starts. Raises ``ConfigError``."""
        if not settings.scorers["reward-model"].model:
            raise ConfigError.at("scorers.reward-model.model", _UNNAMED)

    @hookimpl
    def ernie_score_attempts(self, config: RewardModelConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        """One reward per answer; an answer that was cut off is judged as if it had ended there."""
        if not config.model:
            raise ConfigError.at("scorers.reward-model.model", _UNNAMED)
        return opened(config.model, config.batch_size).scores_of_texts([(a.prompt, a.text) for a in attempts])


@lru_cache(maxsize=2)
def opened(directory: str, batch_size: int) -> RewardModel:
    """The reward model in ``directory``, on the device that is open."""
    from erniecore_reward.scoring import RewardModel

    return RewardModel.open(directory, device="", batch_size=batch_size)


plugin = RewardModelScorer()
