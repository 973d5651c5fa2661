"""Being asked to stop: a signal or the file ``control/stop`` in the run directory. Before training there is nothing to
save and a signal ends the run at once. From :meth:`StopRequest.defer` on the loop asks once per step, so that the step
is finished and saved; then only the second interrupt from the keyboard ends the process at once. Signals outside of a run
are ``erniecore/signals.py``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from erniecore.errors import Preempted
from erniecore.signals import SIGNALS, InterruptedTwice, told

#: what to do after a stop that found nothing to save
AGAIN = "the same command starts again"


def acknowledge() -> None:
    """Say that Ctrl-C was heard; from a signal handler, amid whatever is being printed."""
    with suppress(OSError):
        os.write(2, b"\ninterrupted: finishes the step and saves; Ctrl-C again ends at once\n")


class StopRequest:
    """Whether, and by what, the run was asked to stop.

    Args:
        control: the file whose existence asks for a stop; removed when it is seen.
    """

    def __init__(self, control: Path) -> None:
        self.control, self._reason, self._deferred = control, "", False
        self._numbers: tuple[signal.Signals, ...] = ()

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
        """Catch the signals within the block, but for those that the process ignores (only possible in the main thread;
        elsewhere the file remains). Before training, whatever error follows a signal is its doing: ``Preempted``."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Callable[..., Any] | int | None] = {}
        try:
            before = {number: signal.getsignal(number) for number in SIGNALS}
            self._numbers = tuple(number for number in SIGNALS if before[number] is not signal.SIG_IGN)
            self.install()
            yield
        except Exception as error:
            if isinstance(error, Preempted) or self._deferred or not self._reason:
                raise
            raise self._early() from error  # a library may turn an exception into another one
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def install(self) -> None:
        """Set the handlers (again: a library may have put its own in their place)."""
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
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
            raise InterruptedTwice
        self._reason = name
        if not self._deferred:
            raise self._early()
        if number == signal.SIGINT:
            acknowledge()

    def _early(self) -> Preempted:
        return Preempted(f"{told(self._reason)} before the first step", fix=AGAIN)
