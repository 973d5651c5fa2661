"""How long ranks may go on when others have ended: the same for every launcher."""

from __future__ import annotations

import signal
import time

#: seconds that the other ranks have to end by themselves once one has failed, and again after being asked to
GRACE = 10.0
#: seconds that they have after rank 0, which ends last, has finished
FINISH = 60.0


class Limits:
    """Once :meth:`begin` was called: limited time, then SIGTERM, then SIGKILL."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        self.begun = False

    def begin(self, failed: bool) -> None:
        """A rank has ended: it failed, or was the last one to end. Later calls change nothing."""
        if not self.begun:
            self.begun = True
            end = time.monotonic() + (GRACE if failed else FINISH)
            self._due = [(end, signal.SIGTERM), (end + GRACE, signal.SIGKILL)]

    def due(self) -> int | None:
        """The signal that is due now for those that still run; each is told once."""
        return self._due.pop(0)[1] if self._due and time.monotonic() > self._due[0][0] else None
