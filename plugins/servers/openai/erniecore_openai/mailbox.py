"""From the engine's thread to the event loop: events of all rows of a step come with one wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Mailbox:
    """Items for queues of one event loop, posted by other threads.

    Waking the loop for each item would give it the interpreter in the midst of a step, which then waits until the answers of
    the rows before are written; this way that happens while the next pass is computed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self._woken = False

    def post(self, queue: asyncio.Queue[Any], item: Any) -> None:
        """Put an item into a queue soon. Raises ``RuntimeError`` where the loop is closed."""
        self._items.append((queue, item))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except BaseException:
            self._woken = False
            raise

    def _empty(self) -> None:
        self._woken = False  # first, so that what is posted from here on wakes the loop again
        while self._items:
            queue, item = self._items.popleft()
            queue.put_nowait(item)
