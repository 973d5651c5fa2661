"""A run as one piece of HTML that replaces itself: bar, numbers, curve of the loss, warnings. Pure functions of what was heard.

Everything is text of a run, so everything is escaped. Colors are those of the page around it, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from erniecore_runs.latest import duration

from erniecore.api.events import metrics
from erniecore.api.runs import size_text, warning_text

#: size of the curve in pixels, and points that it has at most
_WIDTH, _HEIGHT, _POINTS = 480, 120, 480
_WARNINGS = 5
_CURVE, _EVAL = "#1a73e8", "#d93025"


@dataclass
class Heard:
    """What the events of a run have said so far.

    Attributes:
        losses, evals: step -> loss, of training and of evaluation. last: the last ``step`` event. end: the ``run_end`` event.
    """

    name: str = ""
    total_steps: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    evals: dict[int, float] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    saved: str = ""
    warnings: list[str] = field(default_factory=list)
    end: Mapping[str, Any] = field(default_factory=dict)

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event; those that are not shown change nothing."""
        kind = event["event"]
        if kind == "run_start":
            self.name, self.total_steps, self.end = str(event["name"]), int(event["total_steps"]), {}
        elif kind == "step":
            self.last = event
            if "loss" in (found := metrics(event)):
                self.losses[int(event["step"])] = found["loss"]
        elif kind == "eval" and "loss" in (found := metrics(event)):
            self.evals[int(event["step"])] = found["loss"]
        elif kind == "checkpoint":
            self.saved = str(event["path"])
        elif kind == "warning":
            self.warnings = [*self.warnings, warning_text(event)][-_WARNINGS:]
        elif kind == "run_end":
            self.end = event


def rows(heard: Heard) -> list[tuple[str, str]]:
    """(label, text) of the numbers below the bar."""
    last = heard.last
    found = [
        (name, f"{value:.4g}") for name, value in metrics(last).items() if name not in ("tokens_per_s", "peak_memory")
    ]
    if heard.evals:
        found.append(("eval loss", f"{list(heard.evals.values())[-1]:.4g}"))
    if last:
        found.append(("tokens/s", f"{last['tokens_per_s']:,.0f}"))
    if last and not heard.end:
        found.append(("time left", duration(last["eta"])))
    if last and last.get("peak_memory"):
        found.append(("memory", size_text(last["peak_memory"])))
    if heard.end:
        found.append((str(heard.end["status"]), duration(heard.end["seconds"])))
    return found


def text(heard: Heard) -> str:
    """The same in one line, for what shows no HTML."""
    step = int(heard.last.get("step", 0))
    return "  ".join(
        [f"{heard.name}  step {step}/{heard.total_steps}", *(f"{label} {value}" for label, value in rows(heard))]
    )


def html(heard: Heard) -> str:
    """The picture below the cell."""
    step = int(heard.last.get("step", 0))
    cells = "".join(
        f'<td style="text-align:left;padding-right:1.2em">{_faint(label, "span")}<br>{escape(value)}</td>'
        for label, value in rows(heard)
    )
    parts = [
        f"<div><b>{escape(heard.name)}</b> &nbsp; step {step} of {heard.total_steps}</div>",
        f'<progress value="{step}" max="{max(heard.total_steps, 1)}" style="width:{_WIDTH}px"></progress>',
        f'<table style="margin:0"><tr>{cells}</tr></table>' if cells else "",
        curve(heard.losses, heard.evals),
        _faint(f"saved in {heard.saved}") if heard.saved else "",
        *(f"<div>⚠ {escape(warning)}</div>" for warning in heard.warnings),
    ]
    return f'<div class="erniecore-run">{"".join(parts)}</div>'


def curve(losses: Mapping[int, float], evals: Mapping[int, float]) -> str:
    """The losses over the steps as SVG, with a dot for each evaluation; nothing before there are two points."""
    line = thinned(sorted(losses.items()))
    if len(line) < 2:
        return ""
    dots = sorted(evals.items())
    values = [value for _, value in (*line, *dots)]
    low, high = min(values), max(values)
    first, last = line[0][0], max(step for step, _ in (*line, *dots))

    def at(step: int, value: float) -> tuple[float, float]:
        x = 4 + (_WIDTH - 8) * (step - first) / max(last - first, 1)
        return round(x, 1), round(4 + (_HEIGHT - 8) * (high - value) / ((high - low) or 1.0), 1)

    points = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line))
    circles = "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="{_EVAL}"/>' for x, y in (at(*dot) for dot in dots))
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="loss, from {low:.4g} to {high:.4g}">'
        f'<polyline points="{points}" fill="none" stroke="{_CURVE}" stroke-width="1.5"/>{circles}</svg>'
        + _faint(f"loss {high:.4g} … {low:.4g}{', dots: evaluation' if dots else ''}")
    )


def _faint(content: str, tag: str = "div") -> str:
    return f'<{tag} style="opacity:.65">{escape(content)}</{tag}>'


def thinned(points: Sequence[tuple[int, float]], most: int = _POINTS) -> list[tuple[int, float]]:
    """At most ``most`` points, each the mean of its neighbors; the last one stays what it is."""
    every = math.ceil(len(points) / most)
    if every <= 1:
        return list(points)
    groups = [points[i : i + every] for i in range(0, len(points) - 1, every)]
    means = [(group[0][0], sum(value for _, value in group) / len(group)) for group in groups]
    return [*means[: most - 1], points[-1]]
