"""Being asked to stop: a signal or the file ``control/stop`` in the run directory. The loop asks once per step, so that
the step is finished and saved; the second interrupt from the keyboard ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether, and by what, the run was asked to stop.

    Args:
        control: the file whose existence asks for a stop; removed when it is seen.
    """

    def __init__(self, control: Path) -> None:
        self.control, self._reason = control, ""

    @property
    def reason(self) -> str:
        """What asked: a signal's name or the file; ``""`` when nothing has."""
        if not self._reason and self.control.exists():
            self._reason = str(self.control)
        return self._reason

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals within the block (only possible in the main thread; elsewhere the file remains)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Callable[..., Any] | int | None] = {}
        try:
            for number in SIGNALS:
                before[number] = signal.signal(number, self._on_signal)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def clear_control(self) -> None:
        """Remove the file, so that the next start runs."""
        self.control.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self._reason == name:
            raise KeyboardInterrupt
        self._reason = name
