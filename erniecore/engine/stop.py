"""Being asked to stop: a signal or the file ``control/stop`` in the run directory. Before training there is nothing to
save and a signal ends the run at once. From :meth:`StopRequest.defer` on the loop asks once per step, so that the step
is finished and saved; then only the second interrupt from the keyboard ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from erniecore.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether, and by what, the run was asked to stop.

    Args:
        control: the file whose existence asks for a stop; removed when it is seen.
    """

    def __init__(self, control: Path) -> None:
        self.control, self._reason, self._deferred = control, "", False

    @property
    def reason(self) -> str:
        """What asked: a signal's name or the file; ``""`` when nothing has."""
        if not self._reason and self.control.exists():
            self._reason = str(self.control)
        return self._reason

    def request(self, reason: str) -> None:
        """Ask from within the run, such as when its time is over; the first reason counts."""
        self._reason = self._reason or reason

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals within the block (only possible in the main thread; elsewhere the file remains)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Callable[..., Any] | int | None] = {}
        try:
            before = {number: signal.getsignal(number) for number in SIGNALS}
            self.install()
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def install(self) -> None:
        """Set the handlers (again: importing paddle puts its own in their place)."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def defer(self) -> None:
        """From now on there is something to save."""
        self._deferred = True

    def clear_control(self) -> None:
        """Remove the file, so that the next start runs."""
        self.control.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self._reason == name:
            raise KeyboardInterrupt
        self._reason = name
        if not self._deferred:
            raise Preempted(f"stopped by {name} before the first step", fix="the same command starts again")
