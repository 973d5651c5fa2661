"""Signals that ask a server to stop. For server plugins; each decides what the first and the second one mean."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

#: from a supervisor, Ctrl-C, and a terminal that closes
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def on_stop(handler: Callable[[int], None]) -> Iterator[None]:
    """Call ``handler`` with the number of every such signal as long as the block runs. In the main thread."""

    def call(number: int, frame: FrameType | None) -> None:
        handler(number)

    before = {number: signal.signal(number, call) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
