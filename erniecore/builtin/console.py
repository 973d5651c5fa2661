"""``console``: what a person, or a script with ``--json``, sees of a run. On a terminal one live line and, above it, what
stays; elsewhere one line every ``log.every`` steps without control characters. The facts are those of events.jsonl.
A console that can no longer be written, as after ``| head``, is given up with a warning; the run goes on.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Protocol, TextIO
from weakref import WeakKeyDictionary

from erniecore_system import streams

from erniecore.builtin.event_text import Event, Shown, describe
from erniecore.builtin.events import plain
from erniecore.plugin import Plugin, hookimpl
from erniecore.types.run import RunView


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
    if mode == "live":
        from erniecore.builtin.live import LiveDisplay

        return LiveDisplay(stream, shown)
    return LineDisplay(stream, shown) if mode == "lines" else NoDisplay()


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
