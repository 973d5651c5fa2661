"""The scorers of a run, ready to be called: their hook bound to plugin and settings, their answers checked. What is tried
is ``rollout.py``; what is learned of it is the method's matter. No paddle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from erniecore.errors import PluginBroken, shorten
from erniecore.types import Attempt, Scorer

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded
    from erniecore.host import Host
    from erniecore.plugin import Plugin


def scorers_of(host: Host, loaded: Loaded) -> list[Scorer]:
    """The run's scorers, in the order of the settings."""
    found = []
    for plugin in loaded.plugins.get("scorer", ()):
        config: Any = loaded.settings.scorers[plugin.name]
        found.append(Scorer(plugin.name, config.weight, partial(score, host, plugin, config)))
    return found


def score(host: Host, plugin: Plugin, config: Any, attempts: Sequence[Attempt]) -> list[float]:
    """One number per attempt. Raises ``PluginBroken`` when the plugin gives anything else."""
    given = host.call(plugin, "ernie_score_attempts", config=config, attempts=attempts)
    scores = [float(value) for value in given]
    if len(scores) != len(attempts):
        raise PluginBroken(
            f"scorer {plugin.name!r} gave {len(scores)} scores for {len(attempts)} answers",
            where=type(plugin).__module__,
        )
    for attempt, value in zip(attempts, scores, strict=True):
        if not math.isfinite(value):
            raise PluginBroken(
                f"scorer {plugin.name!r} gave a score that is not finite",
                where=type(plugin).__module__,
                found=f"{value} for the answer {shorten(attempt.answer)}",
            )
    return scores
