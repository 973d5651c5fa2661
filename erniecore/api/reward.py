"""For reward plugins: compute rewards of completions."""

from erniecore.plugin import RewardConfig
from erniecore.types.completions import Completion, RewardFunction

__all__ = [
    "Completion",
    "RewardFunction",
    "RewardConfig",
]
