"""The events of a run as text for people: the box with the plan, a step, an evaluation, a save, a warning, the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_system import streams
from erniecore_system.units import counted, field_lines, size_text

from erniecore.engine.preparation.rundir import warning_text
from erniecore.signals import told

Event = Mapping[str, Any]
#: columns of the box with the plan, where the terminal has them
BOX = 80
#: columns of the label of a line
LABEL = 7
#: metrics with a place of their own in a line, or of interest to programs only
_PLACED = {
    "event",
    "time",
    "step",
    "loss",
    "lr",
    "grad_norm",
    "tokens",
    "tokens_per_s",
    "seconds",
    "skipped",
    "peak_memory",
    "eta",
}


class Shown(NamedTuple):
    """What a display knows of a run: steps between two lines, steps of the whole run, the run directory."""

    every: int
    total_steps: int
    out: Path


def describe_facts(event: Event) -> str:
    """``loss 2.1341  mtp/loss 3.1  |g| 0.92  lr 9.1e-07  22.0k tok/s  mem 1.2 GiB``."""
    parts = [f"loss {event.get('loss', float('nan')):.4f}"]
    parts += [f"{k} {v:.4g}" for k, v in event.items() if k not in _PLACED and isinstance(v, int | float)]
    parts += [f"|g| {event['grad_norm']:.3g}", f"lr {event['lr']:.3g}", f"{thousands(event['tokens_per_s'])} tok/s"]
    if event.get("peak_memory"):
        parts.append(f"mem {event['peak_memory'] / 2**30:.1f} GiB")
    return "  ".join(parts) + ("  SKIPPED" if event.get("skipped") else "")


def clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"


def thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def _start(shown: Shown, event: Event) -> str:
    lines = [
        f"erniecore {event['version']}   run {event['name']}   device {event['device']}   "
        f"python {event['python']}  paddle {event['paddle']}"
    ]
    width = min(BOX, streams.columns(sys.stdout))
    plan = field_lines([(str(label), str(text)) for label, text in event["plan"]], width - 4)
    lines += ["+-- plan " + "-" * (width - 10) + "+", *(f"| {line:<{width - 4}} |" for line in plan)]
    lines += ["+" + "-" * (width - 2) + "+", *(f"data   {line}" for line in event["data"])]
    return "\n".join([*lines, *(f"note   {note}" for note in event["notes"])])


def _step(shown: Shown, event: Event) -> str:
    return f"step   {event['step']}/{shown.total_steps}  {describe_facts(event)}  ETA {clock(event.get('eta', 0.0))}"


def _eval(shown: Shown, event: Event) -> str:
    values = "  ".join(
        f"{k} {v:.4f}" for k, v in event.items() if isinstance(v, float) and k not in ("time", "seconds")
    )
    return f"eval   step {event['step']}  {values}" + ("  best" if event.get("best_step") == event["step"] else "")


def _early_stop(shown: Shown, event: Event) -> str:
    return f"stop   after step {event['step']} of {event['total_steps']}: {event['reason']}"


def _checkpoint(shown: Shown, event: Event) -> str:
    return f"save   step {event['step']}  {size_text(event['bytes'])}  {event['seconds']:.2f} s  {event['path']}"


def _warning(shown: Shown, event: Event) -> str:
    return f"warn   {warning_text(event)}"


def _end(shown: Shown, event: Event) -> str:
    peak, planned = event.get("tensor_memory"), event.get("planned_memory")
    memory = f"  peak memory {size_text(peak)} (estimated {size_text(planned)})" if peak and planned else ""
    status = told(event["reason"]).partition(" ")[0] if event.get("reason") else event["status"]
    done = f"{status}  {counted(event['steps'], 'step')}  {counted(event['tokens'], 'token')}  {event['seconds']:.1f} s"
    if event.get("planned_seconds") and event["steps"]:
        done += f" ({event['seconds'] / event['steps']:.3g} s per step, planned {event['planned_seconds']:.3g})"
    return f"end    {done}{memory}  {shown.out}"


_TEXTS: dict[str, Callable[[Shown, Event], str]] = {
    "run_start": _start,
    "step": _step,
    "eval": _eval,
    "early_stop": _early_stop,
    "checkpoint": _checkpoint,
    "warning": _warning,
    "run_end": _end,
}


def describe(shown: Shown, event: Event) -> str:
    """The text of an event; ``""`` for events that are not shown."""
    text = _TEXTS.get(event["event"])
    return text(shown, event) if text else ""
