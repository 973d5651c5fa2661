"""``loss.png``: the loss curve as a picture, drawn by matplotlib where it is installed.

Matplotlib is optional (extra ``plot``); whoever calls this hears when it is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from erniecore.builtin.report.chart import running_mean
from erniecore.builtin.report.events import RunRecord, finite

PLOT_NAME = "loss.png"


def draw_loss(record: RunRecord, target: Path) -> str:
    """Write the picture; returns ``""``, or why there is none."""
    losses, evals = finite(record.series("loss")), finite(record.eval_series("loss"))
    if not losses and not evals:
        return f"no {PLOT_NAME}: the run has no finite loss yet"
    if find_spec("matplotlib") is None:
        return f"no {PLOT_NAME}: matplotlib is not installed (pip install 'erniecore[plot]')"
    # the object interface needs no display and keeps no global state
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    smooth = len(losses) >= 30
    if losses:
        axes.plot(*zip(*losses, strict=True), color="#2563eb", alpha=0.3 if smooth else 1, linewidth=1.2, label="loss")
    if smooth:
        mean = running_mean(losses, max(3, len(losses) // 25))
        axes.plot(*zip(*mean, strict=True), color="#2563eb", linewidth=2, label="running mean")
    if evals:
        axes.plot(*zip(*evals, strict=True), "o-", color="#d97706", markersize=5, linewidth=1, label="evaluation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title(record.name, loc="left", parse_math=False)
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if smooth or evals:
        axes.legend(frameon=False)
    figure.savefig(target, format="png")
    return ""
