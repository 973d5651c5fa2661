"""The strategy within a site: another plugin of the same kind, with its own settings, called through its own hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from erniecore.api import ConfigError
from erniecore.api.command import plugin_settings
from erniecore.api.installation import Host, assemble, load
from erniecore.api.parallel import ParallelConfig, ParallelPlugin, ProcessGroup


@dataclass(frozen=True, eq=False)
class Inner:
    """A strategy with its settings."""

    plugin: ParallelPlugin
    config: ParallelConfig
    host: Host

    def has(self, hook: str) -> bool:
        """Whether the strategy implements an optional hook."""
        return any(found.plugin is self.plugin for found in self.host.implementations(hook))

    def call(self, hook: str, **arguments: Any) -> Any:
        """One of its hooks, with its own settings as ``config``."""
        return self.host.call(self.plugin, hook, **{"config": self.config, **arguments})


@dataclass(frozen=True)
class InnerRun:
    """What the hooks of the strategy see of a run, ``RunView`` but with its own process group."""

    objective: Any
    ranks: ProcessGroup


def inner_of(values: Mapping[str, Any]) -> Inner:
    """The strategy that ``parallel.inner`` describes. Raises ``ConfigError`` for settings that it does not have."""
    return _inner_of(json.dumps(values, sort_keys=True))


@lru_cache(maxsize=16)
def _inner_of(text: str) -> Inner:
    values = dict(json.loads(text))
    name = str(values.pop("name", "single"))
    if name == "wan":
        raise ConfigError.at("parallel.inner.name", "a site trains by another strategy, such as single or hybrid")
    plugin = load("parallel", name)
    assert isinstance(plugin, ParallelPlugin)
    config = plugin_settings(plugin.Config, values, "parallel.inner")
    assert isinstance(config, ParallelConfig)
    return Inner(plugin, config, assemble({"parallel": plugin}))
