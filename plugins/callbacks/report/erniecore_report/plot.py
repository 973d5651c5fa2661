"""``loss.png``: the loss curve, and those of what matters to the method, as a picture, drawn by matplotlib."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from erniecore_runs.record import RunRecord, finite

from erniecore_report.chart import Pairs, running_mean
from erniecore_report.panels import IN_PICTURE, panels

PLOT_NAME = "loss.png"


def draw_loss(record: RunRecord, target: Path) -> str:
    """Write the picture; returns ``""``, or why there is none."""
    losses, evals = finite(record.series("loss")), finite(record.eval_series("loss"))
    if max(len(losses), len(evals)) < 2:
        return f"no {PLOT_NAME}: the run has no two finite losses yet"
    # the object interface needs no display and keeps no global state
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = ["loss", *panels(record)[:IN_PICTURE]]
    figure = Figure(figsize=(8, 4.5) if len(names) == 1 else (12, 7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(record.name, x=0.01, ha="left", parse_math=False)
    columns = 1 if len(names) == 1 else 2
    grid = figure.subplots(-(-len(names) // columns), columns, squeeze=False)
    for axes, name in zip_longest(grid.flat, names):
        if name is None:
            axes.set_visible(False)
        else:
            _draw(axes, name, finite(record.series(name)), finite(record.eval_series(name)))
    figure.savefig(target, format="png")
    return ""


def _draw(axes: Any, name: str, points: Pairs, evals: Pairs) -> None:
    """One metric over the steps: raw, its running mean where there are many points, and the evaluations."""
    smooth = len(points) >= 30
    if points:
        axes.plot(*zip(*points, strict=True), color="#2563eb", alpha=0.3 if smooth else 1, linewidth=1.2, label=name)
    if smooth:
        mean = running_mean(points, max(3, len(points) // 25))
        axes.plot(*zip(*mean, strict=True), color="#2563eb", linewidth=2, label="running mean")
    if evals:
        axes.plot(*zip(*evals, strict=True), "o-", color="#d97706", markersize=5, linewidth=1, label="evaluation")
    axes.set_xlabel("step")
    axes.set_ylabel(name, parse_math=False)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if smooth or evals:
        axes.legend(frameon=False)
