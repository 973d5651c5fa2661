"""A reward function in one file: the reference's words that a completion has, less for each word too many."""

from collections.abc import Sequence

from erniecore.api import Field, Plugin, hookimpl
from erniecore.api.reward import Completion, RewardConfig


class Config(RewardConfig):
    penalty: float = Field(0.1, ge=0, description="Taken off per word more than the reference has.")


class Shorter(Plugin):
    kind, name, summary, Config = "reward", "shorter", "words of the reference, less for each word too many", Config

    @hookimpl
    def ernie_compute_rewards(self, config: Config, completions: Sequence[Completion]) -> Sequence[float]:
        rewards = []
        for one in completions:
            wanted, given = one.reference.split(), one.content.split()
            found = len(set(wanted) & set(given)) / max(len(set(wanted)), 1)
            rewards.append(found - config.penalty * max(len(given) - len(wanted), 0))
        return rewards


plugin = Shorter()
