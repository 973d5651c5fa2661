"""Signals that ask a process to end, from its first line to its last: exit codes instead of tracebacks, also while paddle
is imported, which turns an exception into another one and puts handlers of its own in the place of ours. What a run
makes of them is ``engine/stop.py``. Imports nothing heavy.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from erniecore_system import streams

from erniecore.errors import Exit

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
#: while this extension is loaded, an exception would become an ImportError, with a text on stderr
_LIBRARY = "paddle.base.libpaddle"
#: of this one glog, which paddle starts amid its import, puts a handler in the place of ours that dumps and kills
_TAKEN = (signal.SIGTERM,)


class Preempted(BaseException):
    """A signal asks the process to end, and nothing else has been arranged for it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class InterruptedTwice(KeyboardInterrupt):
    """The second Ctrl-C: end at once, without saving."""


def install() -> None:
    """The first thing that a process of ours does. What is ignored, as under ``nohup``, stays ignored."""
    atexit.register(ignore)
    sys.unraisablehook = _unraisable
    for number in SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Preempted(number)


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a callback of a weak reference (imports have one for every module) or in a finalizer. A
    signal that came just then comes again, after that."""
    if not isinstance(lost.exc_value, Preempted | KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = getattr(lost.exc_value, "number", signal.SIGINT)
    threading.Thread(target=_come_again, args=(number,), daemon=True).start()


def _come_again(number: int) -> None:
    """Not while ``_unraisable`` still runs, which a busy machine may stop for long: Python drops what is raised there too."""
    main = threading.main_thread().ident or 0
    inside = True
    while inside:
        time.sleep(0.01)
        frame = sys._current_frames().get(main)
        while frame is not None and frame.f_code is not _unraisable.__code__:
            frame = frame.f_back
        inside = frame is not None
    os.kill(os.getpid(), number)


def outcome(error: BaseException, words: Sequence[str]) -> tuple[int, str] | None:
    """Exit code and text where a signal has caused ``error``, whatever it was turned into on the way; else None.

    Args:
        words: of the command line: ``run`` starts again, other commands end with 128 and the signal's number.
    """
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or found.__context__
    causes = [each for each in chain if isinstance(each, Preempted | KeyboardInterrupt)]
    if not causes:
        return None
    if any(isinstance(cause, InterruptedTwice) for cause in causes):
        return int(Exit.INTERRUPTED), f"{told('')}; the same command continues from the newest checkpoint"
    number = getattr(causes[-1], "number", int(signal.SIGINT))
    what = told(signal.Signals(number).name)
    if words[:1] == ["run"]:
        return int(Exit.PREEMPTED), f"{what} before the first step; the same command starts again"
    return 128 + number, what


def told(reason: str) -> str:
    """What happened, in a few words. ``reason``: a signal's name or what else asked for a stop; empty: a second Ctrl-C."""
    return {"": "interrupted, ended at once", "SIGINT": "interrupted"}.get(reason, f"stopped by {reason}")


def finish(code: int) -> int:
    """The exit code is decided: a further signal ends the process with it, whatever still goes on in threads."""
    for stream in (sys.stdout, sys.stderr):
        streams.flush(stream)
    if code == Exit.INTERRUPTED and threading.active_count() > 1:  # nobody waits for what they write
        os._exit(code)
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(code))
    # CPython notes a KeyboardInterrupt that leaves an `exec`, as in dataclasses, and kills itself at the end; the next one
    # clears the note
    exec("")
    return code


def ignore() -> None:
    """From now on a signal changes nothing: the last file is being written, or the interpreter cleans up, which puts the
    default handlers back."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def guarding_import() -> Iterator[None]:
    """Around an import that may be the first one of paddle. A signal ends it at the next module that it looks for; the
    handler of before decides what follows. A second Ctrl-C ends the process at once."""
    if _LIBRARY in sys.modules or threading.current_thread() is not threading.main_thread():
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.listen(hold=False)
        for caught, handler in finder.before.items():
            signal.signal(caught, handler)
        for number in finder.came:
            signal.raise_signal(number)


class _Finder:
    """Finds no module, but is asked for every one: a place to look at signals, and to take them back from paddle. Those that
    it takes wait from one look to the next, as long as this is the only thread."""

    def __init__(self) -> None:
        now = {number: signal.getsignal(number) for number in SIGNALS}
        self.before = {number: handler for number, handler in now.items() if handler is not None}
        self.came: list[int] = []
        self._library = False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.listen()

    def listen(self, *, hold: bool = True) -> None:
        """Have our handlers in place; what has waited comes to them. ``hold``: what comes now waits for the next look."""
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else self._note)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if hold:
            signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.came:
            os.write(2, f"\n{told('')}\n".encode())
            os._exit(Exit.INTERRUPTED)
        self.came.append(number)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, as the import system understands it; raises ``Preempted`` after a signal."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.listen()
        self._library |= name == _LIBRARY
        if self.came and (not self._library or _LIBRARY in sys.modules):
            raise Preempted(self.came[0])
