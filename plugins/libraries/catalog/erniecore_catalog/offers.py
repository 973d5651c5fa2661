"""What the installed distributions offer, as their metadata say it, read once for each state of ``sys.path``. Decides
nothing (``registry``, ``kernels``) and imports nothing that it lists.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

PREFIX = "erniecore."
State = tuple[tuple[str, int], ...]


class Offer(NamedTuple):
    """An entry point, and what its distribution says of itself; empty where there is no distribution."""

    point: EntryPoint
    distribution: str
    version: str
    requires: tuple[str, ...]


def offers(group: str, installed: State) -> tuple[Offer, ...]:
    """What is installed for a group of entry points whose name starts with ``erniecore.``; ``installed``: see :func:`state`."""
    return _read(installed).get(group, ())


def state() -> State:
    """The directories that metadata are looked for in, with the time of their last change: an install is one."""
    return tuple((path, _changed(path)) for path in sys.path)


def _changed(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=2)
def _read(installed: State) -> dict[str, tuple[Offer, ...]]:
    """Group -> offers. ``installed`` is the key only: whoever installs something into it changes it."""
    facts: dict[int, tuple[str, str, tuple[str, ...]]] = {}
    found: dict[str, list[Offer]] = {}
    points = entry_points()
    for group in sorted(name for name in points.groups if name.startswith(PREFIX)):
        for point in points.select(group=group):
            if id(point.dist) not in facts:
                facts[id(point.dist)] = _facts(point)
            found.setdefault(group, []).append(Offer(point, *facts[id(point.dist)]))
    return {group: tuple(offered) for group, offered in found.items()}


def _facts(point: EntryPoint) -> tuple[str, str, tuple[str, ...]]:
    if point.dist is None:
        return "", "", ()
    text = point.dist.read_text("METADATA") or point.dist.read_text("PKG-INFO") or ""
    found: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():  # point.dist.metadata parses as mail, the long description too
        key, colon, value = line.partition(": ")
        if colon and not key[:1].isspace():
            found.setdefault(key.lower(), []).append(value.strip())
    name, version = found.get("name", [""])[0], found.get("version", [""])[0]
    return name, version, tuple(found.get("requires-dist") or point.dist.requires or ())
