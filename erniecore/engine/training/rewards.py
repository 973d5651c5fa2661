"""The reward functions of a run, ready to call: each hook bound to its plugin and settings, its results checked.

Rollouts are made in ``rollout.py``; what is learned from them is the method's matter. No paddle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from erniecore_system.units import counted

from erniecore.errors import PluginBroken, shorten
from erniecore.types.completions import Completion, RewardFunction

if TYPE_CHECKING:
    from erniecore.host import Host
    from erniecore.plugin import Plugin
    from erniecore.sections import RewardConfig


def reward_functions_of(
    host: Host, plugins: Sequence[Plugin], sections: Mapping[str, RewardConfig]
) -> list[RewardFunction]:
    """The run's reward functions, in the order of the settings.

    Args:
        sections: settings by name of the plugin.
    """
    found = []
    for plugin in plugins:
        config = sections[plugin.name]
        found.append(RewardFunction(plugin.name, config.weight, partial(compute_rewards, host, plugin, config)))
    return found


def compute_rewards(host: Host, plugin: Plugin, config: RewardConfig, completions: Sequence[Completion]) -> list[float]:
    """One number per completion. Raises ``PluginBroken`` when the plugin gives anything else."""
    given = host.call(plugin, "ernie_compute_rewards", config=config, completions=completions)
    rewards = [float(value) for value in given]
    if len(rewards) != len(completions):
        raise PluginBroken(
            f"reward function {plugin.name!r} gave {counted(len(rewards), 'reward')} for "
            f"{counted(len(completions), 'completion')}",
            where=type(plugin).__module__,
        )
    for completion, value in zip(completions, rewards, strict=True):
        if not math.isfinite(value):
            raise PluginBroken(
                f"reward function {plugin.name!r} gave a reward that is not finite",
                where=type(plugin).__module__,
                found=f"{value} for the completion {shorten(completion.content)}",
            )
    return rewards
