"""Numbers with their intervals, from the results of ``ernie eval`` and ``ernie lm-eval``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from erniecore_runs.record import number

#: half a 95 % interval of a normal mean, in standard errors
_Z95 = 1.96
_PLAIN = ("loss", "perplexity", "bits_per_byte", "accuracy", "reward")


@dataclass(frozen=True, slots=True)
class Measure:
    """One number; with values ``a`` and ``b`` of two models, their difference. ``low``, ``high``: its 95 % interval."""

    group: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None
    a: float | None = None
    b: float | None = None
    p: float | None = None

    def at(self, value: float | None, range_: tuple[float, float]) -> float:
        """Where a value lies in a plot that is 100 wide."""
        low, high = range_
        return round(100 * ((self.value if value is None else value) - low) / (high - low), 2)


def measures(result: dict[str, Any]) -> list[Measure]:
    """The measures in a result; none where it is not one."""
    return list(_measures(result))


def span(found: list[Measure]) -> tuple[float, float]:
    """The smallest and the largest value that a plot of the measures with an interval needs, and zero where they compare."""
    values = [v for m in found if m.low is not None for v in (m.low, m.high, m.value) if v is not None]
    values += [0.0] if any(m.a is not None for m in found) else []
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _measures(found: dict[str, Any]) -> Iterator[Measure]:
    yield from _of("", found)
    groups = found.get("groups")
    for name, values in groups.items() if isinstance(groups, dict) else ():
        if isinstance(values, dict):
            yield from _of(str(name), values)
    results = found.get("results")
    for task, values in results.items() if isinstance(results, dict) else ():
        if isinstance(values, dict):
            yield from _of_task(str(task), values)


def _of(group: str, values: dict[str, Any]) -> Iterator[Measure]:
    for name, value in values.items():
        if isinstance(value, dict) and "difference" in value:
            one = {key: number(value.get(key)) for key in ("difference", "low", "high", "a", "b", "p")}
            if (difference := one.pop("difference")) is not None:
                yield Measure(group, name, difference, **one)
        elif isinstance(value, dict) and (score := number(value.get("score"))) is not None:
            yield Measure(group, name, score, number(value.get("low")), number(value.get("high")))
        elif (name in _PLAIN or name.startswith("rewards/")) and (plain := number(value)) is not None:
            yield Measure(group, name, plain)
        elif name == "scores" and isinstance(value, dict):
            yield from _of(group, value)


def _of_task(task: str, values: dict[str, Any]) -> Iterator[Measure]:
    for name, value in values.items():
        plain = number(value)
        key, _, filtered = name.partition(",")
        if plain is None or key.endswith("_stderr") or name in ("alias", "sample_len"):
            continue
        error = number(values.get(f"{key}_stderr,{filtered}" if filtered else f"{key}_stderr"))
        half = None if error is None or math.isnan(error) else _Z95 * error
        yield Measure(task, key, plain, *((None, None) if half is None else (plain - half, plain + half)))
