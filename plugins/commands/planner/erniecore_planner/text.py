"""How numbers of operations and parts of a whole read in a plan."""

from __future__ import annotations

from collections.abc import Mapping

#: classes of operators whose name in JSON is not the usual word
_SHOWN = {"products": "matmul", "calls": "operator calls", "update": "optimizer"}


def flops_text(value: float) -> str:
    """``1.5 T``, ``320 G``."""
    for limit, unit in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def shares_text(parts: Mapping[str, float]) -> str:
    """``matmul 57%, attention 32%``: the larger parts, by size."""
    total = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{_SHOWN.get(name, name)} {value / total:.0%}" for name, value in ordered if value > 0.02 * total)
