"""A plugin that nobody named is imported in a copy of this process first: there it may hang, interrupt or end what it likes.

The copy is a fork: milliseconds, and the plugin finds what it will find here.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from functools import lru_cache
from typing import NoReturn

from erniecore_catalog.offers import State, state
from erniecore_system import lifeline

from erniecore import registry
from erniecore.errors import PluginError
from erniecore.registry import Entry
from erniecore.units import printable

#: seconds that an import may take, whatever it waits for
SECONDS = 30.0
_GOOD = "good"


def is_harmless(entry: Entry) -> bool:
    """Whether a plugin may be imported here. One that may not is named on stderr, once."""
    found = harm(entry)
    if found:
        _name(entry, found, state())
    return not found


def harm(entry: Entry) -> str:
    """What a plugin does to the process that imports it; empty: nothing worse than an error with a name. Plugins of ours, and
    what is imported already, are not tried."""
    return "" if registry.is_ours(entry) or entry.point.module in sys.modules else _harm(entry, state())


@lru_cache(maxsize=256)
def _harm(entry: Entry, installed: State) -> str:
    """``installed`` is the key only: what was installed anew is tried anew."""
    ours, theirs = os.pipe()
    parent = os.getpid()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    child = os.fork()
    if not child:
        _import(entry, theirs, parent)
    os.close(theirs)
    said, status = "", None
    try:
        until = time.monotonic() + SECONDS
        if select.select([ours], [], [], SECONDS)[0]:
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
        return f"its import takes more than {SECONDS:g} s"
    how = f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else signal.Signals(os.WTERMSIG(status)).name
    return f"its import ends the process ({how})"


def _import(entry: Entry, out: int, parent: int) -> NoReturn:
    """In the copy: no terminal, no output, and the end of this process is its end."""
    said = ""
    try:
        os.setsid()
        lifeline.follow(signal.SIGKILL, parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        (registry.load_object if entry.kind == "command" else registry.load_entry)(entry)
        said = _GOOD
    except PluginError:  # whoever names it is told
        said = _GOOD
    except BaseException as error:
        said = f"its import raises {type(error).__name__}"
    finally:
        with suppress(OSError):
            os.write(out, said.encode())
        os._exit(0)


@lru_cache(maxsize=256)
def _name(entry: Entry, found: str, installed: State) -> None:
    """Say on stderr that a plugin is left out, once. Ranks and workers leave that to the process that started them."""
    if not lifeline._parent:
        words = f"warning: {entry.kind} plugin {entry.name!r} of {entry.distribution} {entry.version} is left out: {found}; "
        with suppress(OSError, ValueError):
            print(printable(f"{words}pip uninstall {entry.distribution}"), file=sys.stderr, flush=True)
