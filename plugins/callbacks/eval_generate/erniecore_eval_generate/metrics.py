"""The reward functions that score completions, by the names in the settings. No paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api.command import plugin_settings
from erniecore.api.installation import assemble, load
from erniecore.api.reward import RewardConfig, RewardFunction, reward_functions_of

if TYPE_CHECKING:
    from erniecore_eval_generate.config import Config


def reward_functions(config: Config) -> list[RewardFunction]:
    """Ready to call, in the order of ``config.metrics``.

    Raises:
        PluginNotFound: no such reward function. ConfigError: settings that it does not take.
    """
    plugins = {name: load("reward", name) for name in dict.fromkeys(config.metrics)}
    sections = {}
    for name, plugin in plugins.items():
        section = plugin_settings(
            plugin.Config, config.options.get(name, {}), f"callbacks.eval-generate.options.{name}"
        )
        assert isinstance(section, RewardConfig)  # the registry loads no other reward function
        sections[plugin.name] = section
    return reward_functions_of(assemble({"reward": [*plugins.values()]}), [*plugins.values()], sections)
