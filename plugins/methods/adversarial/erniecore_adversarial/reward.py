"""The judge of texts as a reward function, for methods that generate. The model is opened once per process and directory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from erniecore.api import ConfigError, Field, Plugin, hookimpl
from erniecore.api.reward import Completion, RewardConfig

if TYPE_CHECKING:
    from erniecore_adversarial.judge import Judge

_UNNAMED = "name the directory of a model that an adversarial run has trained: rewards.natural-text.model=DIR"
#: of a completion without text: as unnatural as a float says
_EMPTY = -100.0


class NaturalTextConfig(RewardConfig):
    """How natural a completion is, by a trained judge."""

    model: str = Field("", description="Directory of a model that an adversarial run has trained.")
    batch_size: int = Field(8, ge=1, description="Completions at a time.")

    def other_models(self) -> Sequence[str]:
        """The model that judges."""
        return (self.model,) if self.model else ()


class NaturalTextReward(Plugin):
    """The reward function that asks the judge."""

    kind, name = "reward", "natural-text"
    summary = "log-probability that people wrote a completion, by a model of the method `adversarial`"
    Config = NaturalTextConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """A run that does not name its judge ends before it starts. Raises ``ConfigError``."""
        if not settings.rewards["natural-text"].model:
            raise ConfigError.at("rewards.natural-text.model", _UNNAMED)

    @hookimpl
    def ernie_compute_rewards(self, config: NaturalTextConfig, completions: Sequence[Completion]) -> Sequence[float]:
        """log P(natural) of each completion without its prompt; -100 for one without text."""
        if not config.model:
            raise ConfigError.at("rewards.natural-text.model", _UNNAMED)
        texts = [c.content for c in completions]
        found = iter(opened(config.model, config.batch_size).log_natural([text for text in texts if text.strip()]))
        return [next(found) if text.strip() else _EMPTY for text in texts]


@lru_cache(maxsize=2)
def opened(directory: str, batch_size: int) -> Judge:
    """The judge in ``directory``, on the device that is open."""
    from erniecore_adversarial.judge import Judge

    return Judge.open(directory, device="", batch_size=batch_size)


plugin = NaturalTextReward()
