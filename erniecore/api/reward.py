"""For reward plugins: compute rewards of completions."""

from erniecore.engine.training.rewards import reward_functions_of
from erniecore.plugin import RewardConfig
from erniecore.types.completions import Completion, RewardFunction

__all__ = [
    "Completion",
    "RewardFunction",
    "RewardConfig",
    "reward_functions_of",
]
