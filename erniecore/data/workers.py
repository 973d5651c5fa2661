"""Processes that do the pure part of encoding: started afresh, so nothing is inherited, each with a pipe of its own. Whatever
ends the process that started them ends them, too, and leaves neither semaphores nor shared memory: there are none.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from erniecore_system import lifeline

from erniecore.errors import EnvironmentFault

#: items that wait per worker
_AHEAD = 4


def in_processes(work: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any], workers: int) -> Iterator[Any]:
    """``work(shared, item)`` of every item, in order, at most a few items ahead.

    Args:
        work: a function of a module; ``shared`` and the items go to the workers as pickles. workers: at most so many.

    Raises:
        EnvironmentFault: a worker was killed. Exception: what ``work`` raises.
    """
    pool: list[_Worker] = []
    waiting: deque[_Worker] = deque()
    try:
        for number, item in enumerate(items):
            if number < workers:
                pool.append(_Worker(work, shared))
            worker = pool[number % workers]
            worker.send(item)
            waiting.append(worker)
            if len(waiting) >= workers * _AHEAD:
                yield waiting.popleft().receive()
        while waiting:
            yield waiting.popleft().receive()
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    """A process and this end of its pipe. It answers in the order in which it is asked."""

    def __init__(self, work: Callable[[Any, Any], Any], shared: Any) -> None:
        context = get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end, os.getpid(), work, shared), daemon=True)
        # the terminal's signals come to this process, which ends the worker
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            end.close()

    def send(self, item: Any) -> None:
        """Ask; the worker takes it even while it works."""
        try:
            self._pipe.send(item)
        except OSError as error:
            raise self._killed() from error

    def receive(self) -> Any:
        """Wait for the result of the oldest item sent; what it raised is raised here."""
        try:
            done, result = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._killed() from error
        if not done:
            raise result
        return result

    def _killed(self) -> EnvironmentFault:
        self._process.join()
        return EnvironmentFault(
            "a process that tokenizes was killed",
            found=f"status {self._process.exitcode}",
            fix="look at memory; data.workers=0 tokenizes in the process of the run",
            code="ERN-E020",
        )

    def close(self) -> None:
        """End it; it has nothing to save."""
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _serve(pipe: Connection, parent: int, work: Callable[[Any, Any], Any], shared: Any) -> None:
    """In the worker: answer until the other end is gone."""
    lifeline.follow(signal.SIGKILL, parent)
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                items.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            answer = True, work(shared, items.get())
        except Exception as error:
            answer = False, error
        try:
            pipe.send(answer)
        except OSError:  # nobody is there any more
            os._exit(0)
