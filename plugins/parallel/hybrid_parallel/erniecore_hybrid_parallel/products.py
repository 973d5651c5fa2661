"""Which parallel axes can be combined: one table, for checking settings and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from erniecore.api import ConfigError
from erniecore.api.planning import ParallelLayout
from erniecore_hybrid_parallel.config import HybridConfig

#: what has degrees: settings, or a layout of a planner
Degrees = HybridConfig | ParallelLayout
#: axis -> whether the settings use it
AXES: Mapping[str, Callable[[Degrees], bool]] = {
    "data": lambda config: config.data > 1,
    "sharding": lambda config: config.sharding > 1,
    "sharding_stage 3": lambda config: config.sharding > 1 and config.sharding_stage == 3,
    "tensor": lambda config: config.tensor > 1,
    "sequence": lambda config: config.sequence,
    "expert": lambda config: config.expert > 1,
    "context": lambda config: config.context > 1,
    "pipeline": lambda config: config.pipeline > 1,
}
#: (axis, axis), in the order of ``AXES`` -> why they do not go together; every other product works
REFUSED: Mapping[tuple[str, str], str] = {
    (
        "sharding_stage 3",
        "pipeline",
    ): "each micro-batch would all-gather the layers of its stage again; use stage 1 or 2",
}


def check_products(config: Degrees) -> None:
    """Raises ``ConfigError`` at the first of two axes that do not go together."""
    used = [axis for axis, is_used in AXES.items() if is_used(config)]
    for one, other in combinations(used, 2):
        if reason := REFUSED.get((one, other)):
            raise ConfigError.at(f"parallel.{one.split()[0]}", f"{one} and {other} do not go together: {reason}")


def table() -> str:
    """Markdown: axis x axis, and below why some are refused."""
    names = list(AXES)
    lines = ["| |" + "".join(f" {name} |" for name in names[1:]), "|---|" + "---|" * (len(names) - 1)]
    for row, one in enumerate(names[:-1]):
        cells = [_cell(one, other) if column > row else "" for column, other in enumerate(names) if column]
        lines.append(f"| {one} |" + "".join(f" {cell} |" for cell in cells))
    reasons = [f"* {one} x {other}: {reason}." for (one, other), reason in REFUSED.items()]
    return "\n".join([*lines, "", *reasons])


def _cell(one: str, other: str) -> str:
    if (one, other) == ("sharding", "sharding_stage 3"):
        return "needs it"
    if (one, other) == ("tensor", "sequence"):
        return "needs it"
    return "refused" if (one, other) in REFUSED else "works"
