"""A plugin that nobody named is imported in a copy of this process first; see ``erniecore_system.trial``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from erniecore_catalog.offers import State, state
from erniecore_system import lifeline, trial
from erniecore_system.units import printable

from erniecore.errors import PluginError
from erniecore.plugin_entry import Entry

#: seconds that an import may take, whatever it waits for
SECONDS = 30.0


def is_harmless(entry: Entry, load: Callable[[Entry], object]) -> bool:
    """Whether ``load`` may import a plugin here. One that may not be is named on stderr, once."""
    found = harm(entry, load)
    if found:
        _name(entry, found, state())
    return not found


def harm(entry: Entry, load: Callable[[Entry], object]) -> str:
    """What a plugin does to the process in which ``load`` imports it; empty: nothing worse than an error with a name. Plugins of
    ours, and what is imported already, are not tried."""
    return "" if entry.is_ours or entry.point.module in sys.modules else _harm(entry, load, state())


@lru_cache(maxsize=256)
def _harm(entry: Entry, load: Callable[[Entry], object], installed: State) -> str:
    """``installed`` is the key only: what was installed anew is tried anew."""
    found = trial.harm(lambda: load(entry), SECONDS, PluginError)  # whoever names it is told of that
    return f"its import {found}" if found else ""


@lru_cache(maxsize=256)
def _name(entry: Entry, found: str, installed: State) -> None:
    """Say on stderr that a plugin is left out, once. Ranks and workers leave that to the process that started them."""
    if not lifeline._parent:
        words = f"warning: {entry.kind} plugin {entry.name!r} of {entry.distribution} {entry.version} is left out: {found}; "
        with suppress(OSError, ValueError):
            print(printable(f"{words}pip uninstall {entry.distribution}"), file=sys.stderr, flush=True)
