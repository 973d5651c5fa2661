"""The live display of ``console``: a progress line at the bottom of a terminal. Imported where there is a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from erniecore_system import streams
from erniecore_system.units import wrapped

from erniecore.builtin.event_text import BOX, LABEL, Event, Shown, clock, describe, thousands

if TYPE_CHECKING:
    from rich.progress import Progress

#: columns of the bar
_BAR = 8


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
        text = wrapped(describe(self.shown, event), streams.columns(self.stream), LABEL)
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


def describe_briefly(event: Event, room: int = BOX) -> str:
    """What fits beside a bar into ``room`` columns: ``loss 2.1341 22.0k tok/s ETA 0:03:04 1.2 GiB``, or the first of them."""
    facts = [
        f"loss {event.get('loss', float('nan')):.4f}" + (" SKIPPED" if event.get("skipped") else ""),
        f"{thousands(event['tokens_per_s'])} tok/s",
        f"ETA {clock(event.get('eta', 0.0))}",
        f"{event['peak_memory'] / 2**30:.1f} GiB" if event.get("peak_memory") else "",
    ]
    while len(facts) > 1 and len(" ".join(facts)) > room:
        facts.pop()
    return " ".join(facts).rstrip()
