"""A process that ends with the one that started it, whatever kills that one (Linux). Standard library only."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

#: variable with the id of the process that its child process follows
PARENT = "ERNIECORE_PARENT"
_PR_SET_PDEATHSIG = 1
#: seconds that a process which has something to save may take for it once it is alone
GRACE = 300.0
_parent = 0


def variables() -> dict[str, str]:
    """What a child process needs in its environment to follow this process."""
    return {PARENT: str(os.getpid())}


def follow(number: int = signal.SIGKILL, parent: int = 0) -> None:
    """Get a signal when the parent process dies; at once, if it has died already. The main thread calls this, as early as
    it can: without something to save SIGKILL is right, which no library and no loop can hold up.

    Args:
        parent: its id; 0: the one in the environment or of the call before, or nothing is done.
    """
    global _parent
    _parent = parent or int(os.environ.pop(PARENT, "0")) or _parent
    if _parent and sys.platform == "linux":
        _at_death(number)
        if os.getppid() != _parent:
            os.kill(os.getpid(), number)


def _at_death(number: int) -> None:
    """The kernel sends ``number`` when the parent process dies. Each thread may ask for a signal of its own."""
    if sys.platform == "linux":
        import ctypes  # every command imports this module, and few have somebody to follow

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def save_first(grace: float = GRACE, look: float = 1.0) -> None:
    """From now on there is something to save: SIGTERM instead of SIGKILL when the parent dies, and SIGKILL ``grace`` seconds
    later. For a process that :func:`follow` has been called in; others go on as they are. One that is stopped (SIGSTOP) is
    continued then: it could not hear SIGTERM.

    Args:
        look: seconds between two looks at the parent.
    """
    if not _parent:
        return
    asked = threading.Event()
    thread = threading.Thread(target=_watch, args=(_parent, grace, look, asked), name="lifeline", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals stay the main thread's
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    asked.wait()  # from here on the process may be stopped
    follow(signal.SIGTERM)


def _watch(parent: int, grace: float, look: float, asked: threading.Event) -> None:
    _at_death(signal.SIGCONT)
    asked.set()
    while os.getppid() == parent:
        time.sleep(look)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)
