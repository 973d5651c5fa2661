"""A plugin that nobody named is imported in a copy of this process first; see ``erniecore_system.trial``."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache

from erniecore_catalog.offers import State, state
from erniecore_system import lifeline, trial
from erniecore_system.units import printable

from erniecore import registry
from erniecore.errors import PluginError
from erniecore.registry import Entry

#: seconds that an import may take, whatever it waits for
SECONDS = 30.0


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
    load = registry.load_object if entry.kind == "command" else registry.load_entry
    found = trial.harm(lambda: load(entry), SECONDS, PluginError)  # whoever names it is told of that
    return f"its import {found}" if found else ""


@lru_cache(maxsize=256)
def _name(entry: Entry, found: str, installed: State) -> None:
    """Say on stderr that a plugin is left out, once. Ranks and workers leave that to the process that started them."""
    if not lifeline._parent:
        words = f"warning: {entry.kind} plugin {entry.name!r} of {entry.distribution} {entry.version} is left out: {found}; "
        with suppress(OSError, ValueError):
            print(printable(f"{words}pip uninstall {entry.distribution}"), file=sys.stderr, flush=True)
