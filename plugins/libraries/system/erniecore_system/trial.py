"""What an action does to the process that runs it, found in a copy of this process: there it may hang, interrupt or end what
it likes. The copy is a fork: milliseconds, and the action finds what it will find here. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from erniecore_system import lifeline

_GOOD = "good"


def harm(action: Callable[[], object], seconds: float, expected: type[Exception]) -> str:
    """What ``action`` would do to this process, as the end of a sentence: "takes more than 30 s", "raises Odd", "ends the
    process (exit 0)". Empty: it ends by itself within ``seconds``, or with an ``expected`` error.
    """
    ours, theirs = os.pipe()
    parent = os.getpid()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    child = os.fork()
    if not child:
        _act(action, expected, theirs, parent)
    os.close(theirs)
    said, status = "", None
    try:
        until = time.monotonic() + seconds
        if select.select([ours], [], [], seconds)[0]:
            said = os.read(ours, 1000).decode(errors="replace")
            while not said and status is None and time.monotonic() < until:
                done, found = os.waitpid(child, os.WNOHANG)
                status = found if done else None
                time.sleep(0.001)
    finally:
        os.close(ours)
        for end in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                end(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
    if said:
        return "" if said == _GOOD else said
    if status is None:
        return f"takes more than {seconds:g} s"
    how = f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else signal.Signals(os.WTERMSIG(status)).name
    return f"ends the process ({how})"


def _act(action: Callable[[], object], expected: type[Exception], out: int, parent: int) -> NoReturn:
    """In the copy: no terminal, no output, and the end of this process is its end."""
    said = ""
    try:
        os.setsid()
        lifeline.follow(signal.SIGKILL, parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        with suppress(expected):
            action()
        said = _GOOD
    except BaseException as error:
        said = f"raises {type(error).__name__}"
    finally:
        with suppress(OSError):
            os.write(out, said.encode())
        os._exit(0)
