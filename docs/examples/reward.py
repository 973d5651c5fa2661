"""1 for a completion that says what the data say, else 0."""

from collections.abc import Sequence

from erniecore.api import Plugin, hookimpl
from erniecore.api.reward import Completion, RewardConfig


class Same(Plugin):
    """Compares without surrounding whitespace."""

    kind, name, summary, Config = "reward", "same", "1 for the reference completion", RewardConfig

    @hookimpl
    def ernie_compute_rewards(self, completions: Sequence[Completion]) -> Sequence[float]:
        return [float(one.content.strip() == one.reference.strip()) for one in completions]


plugin = Same()
