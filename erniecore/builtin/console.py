"""``console``: what a person, or a script with ``--json``, sees of a run. On a terminal one live line and, above it, what
stays; elsewhere one line every ``log.every`` steps without control characters. The facts are those of events.jsonl.
A console that can no longer be written, as after ``| head``, is given up with a warning; the run goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO
from weakref import WeakKeyDictionary

from erniecore import streams
from erniecore.builtin.events import plain
from erniecore.engine.preparation.rundir import warning_text
from erniecore.plugin import Plugin, hookimpl
from erniecore.signals import told
from erniecore.types.run import RunView
from erniecore.units import counted, field_lines, size_text, wrapped

if TYPE_CHECKING:
    from rich.progress import Progress

Event = Mapping[str, Any]
#: columns of the box with the plan, where the terminal has them
BOX = 80
#: columns of the label of a line
_LABEL = 7
#: and of the bar in the live line
_BAR = 8
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


class Display(Protocol):
    """One way of showing a run."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


class JsonDisplay:
    """Every event as one JSON line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, event: Event) -> None:
        print(json.dumps(plain(event), ensure_ascii=False, allow_nan=False), file=self.stream, flush=True)

    def close(self) -> None:
        pass


class LineDisplay:
    """Plain lines; steps every ``log.every``."""

    def __init__(self, stream: TextIO, shown: Shown) -> None:
        self.stream, self.shown = stream, shown

    def show(self, event: Event) -> None:
        if event["event"] != "step" or self.wants(event["step"]):
            text = describe(self.shown, event)
            if text:
                print(text, file=self.stream, flush=True)

    def wants(self, step: int) -> bool:
        """The first, the last and every ``log.every``-th step."""
        return step in (1, self.shown.total_steps) or step % self.shown.every == 0

    def close(self) -> None:
        pass


class LiveDisplay:
    """A progress line at the bottom of a terminal; events other than steps scroll above it."""

    def __init__(self, stream: TextIO, shown: Shown) -> None:
        self.stream, self.shown = stream, shown
        self.progress: Progress | None = None

    def show(self, event: Event) -> None:
        if event["event"] == "step":
            progress, width = self._line(event["step"]), streams.columns(self.stream)
            beside = len(f"step {event['step']}/{self.shown.total_steps}") + _BAR + 2
            progress.update(
                progress.task_ids[0], completed=event["step"], facts=describe_briefly(event, width - beside)
            )
            return
        text = wrapped(describe(self.shown, event), streams.columns(self.stream), _LABEL)
        if text and self.progress is not None:
            self.progress.console.print(text, markup=False, highlight=False)
        elif text:
            print(text, file=self.stream, flush=True)
        if event["event"] == "run_end":
            self.close()

    def _line(self, step: int) -> Progress:
        if self.progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self.progress = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(bar_width=_BAR),
                TextColumn("{task.fields[facts]}"),
                console=Console(
                    file=self.stream, width=streams.columns(self.stream), no_color="NO_COLOR" in os.environ or None
                ),
            )
            self.progress.add_task("", total=self.shown.total_steps, completed=step, facts="")
            self.progress.start()
        return self.progress

    def close(self) -> None:
        """Leave the last state of the line on the screen."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def describe_facts(event: Event) -> str:
    """``loss 2.1341  mtp/loss 3.1  |g| 0.92  lr 9.1e-07  22.0k tok/s  mem 1.2 GiB``."""
    parts = [f"loss {event.get('loss', float('nan')):.4f}"]
    parts += [f"{k} {v:.4g}" for k, v in event.items() if k not in _PLACED and isinstance(v, int | float)]
    parts += [f"|g| {event['grad_norm']:.3g}", f"lr {event['lr']:.3g}", f"{_thousands(event['tokens_per_s'])} tok/s"]
    if event.get("peak_memory"):
        parts.append(f"mem {event['peak_memory'] / 2**30:.1f} GiB")
    return "  ".join(parts) + ("  SKIPPED" if event.get("skipped") else "")


def describe_briefly(event: Event, room: int = BOX) -> str:
    """What fits beside a bar into ``room`` columns: ``loss 2.1341 22.0k tok/s ETA 0:03:04 1.2 GiB``, or the first of them."""
    facts = [
        f"loss {event.get('loss', float('nan')):.4f}" + (" SKIPPED" if event.get("skipped") else ""),
        f"{_thousands(event['tokens_per_s'])} tok/s",
        f"ETA {_clock(event.get('eta', 0.0))}",
        f"{event['peak_memory'] / 2**30:.1f} GiB" if event.get("peak_memory") else "",
    ]
    while len(facts) > 1 and len(" ".join(facts)) > room:
        facts.pop()
    return " ".join(facts).rstrip()


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"


def _thousands(value: float) -> str:
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
    return f"step   {event['step']}/{shown.total_steps}  {describe_facts(event)}  ETA {_clock(event.get('eta', 0.0))}"


def _eval(shown: Shown, event: Event) -> str:
    values = "  ".join(
        f"{k} {v:.4f}" for k, v in event.items() if isinstance(v, float) and k not in ("time", "seconds")
    )
    return f"eval   step {event['step']}  {values}"


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
    "checkpoint": _checkpoint,
    "warning": _warning,
    "run_end": _end,
}


def describe(shown: Shown, event: Event) -> str:
    """The text of an event; ``""`` for events that are not shown."""
    text = _TEXTS.get(event["event"])
    return text(shown, event) if text else ""


class NoDisplay:
    """Shows nothing: for use from Python."""

    def show(self, event: Event) -> None:
        pass

    def close(self) -> None:
        pass


def choose(mode: str, stream: TextIO, shown: Shown) -> Display:
    """``auto`` is ``live`` on a terminal and ``lines`` elsewhere; ``json`` and ``none`` are asked for."""
    if mode == "auto":
        mode = "live" if stream.isatty() and os.environ.get("TERM") != "dumb" else "lines"
    if mode == "json":
        return JsonDisplay(stream)
    table: dict[str, Callable[[TextIO, Shown], Display]] = {"lines": LineDisplay, "live": LiveDisplay}
    return table[mode](stream, shown) if mode != "none" else NoDisplay()


#: the display of each run in progress; plugin objects themselves keep no state
_displays: WeakKeyDictionary[RunView, Display] = WeakKeyDictionary()


class ConsolePlugin(Plugin):
    """Prints the progress of a run to the terminal."""

    kind = "callback"
    name = "console"
    summary = "shows a run: a live line on a terminal, plain or JSON lines elsewhere"

    @hookimpl
    def ernie_event(self, run: RunView, event: Event) -> None:
        if run not in _displays:
            _displays[run] = choose(run.console, sys.stdout, Shown(run.settings.log.every, run.total_steps, run.out))
        try:
            _displays[run].show(event)
        except (OSError, ValueError) as error:  # nobody reads it, the disk is full, it was closed, it has other letters
            _displays[run] = NoDisplay()
            streams.silence(sys.stdout)
            message = f"the console cannot be written, the run goes on without it: {error}"
            run.emit("warning", kind="console", message=message)

    @hookimpl
    def ernie_run_end(self, run: RunView) -> None:
        if run in _displays:
            with suppress(OSError, ValueError):
                _displays.pop(run).close()


plugin = ConsolePlugin()
