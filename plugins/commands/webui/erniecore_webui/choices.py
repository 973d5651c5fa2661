"""What pages take from a request: the name of an installed plugin, and which part of a long list is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from starlette.requests import Request

from erniecore.api import Plugin, UsageError

T = TypeVar("T")


def plugin_names(kind: str) -> list[str]:
    """Names of the installed plugins of a kind, in order."""
    from erniecore.api.installation import entries

    return sorted(entry.name for entry in entries(kind))


def plugins(kind: str) -> list[Plugin]:
    """The installed plugins of a kind that load, by name."""
    from erniecore.api.installation import loadable

    return sorted(loadable(kind), key=lambda plugin: plugin.name)


def plugin_name(kind: str, name: str) -> str:
    """``name``, if a plugin of the kind is installed under it. Raises ``UsageError`` for another one."""
    names = plugin_names(kind)
    if name not in names:
        raise UsageError(f"no such {kind}", found=name, expected="one of " + ", ".join(names))
    return name


class Part(NamedTuple, Generic[T]):
    """``rows`` of part ``number`` of ``last``, counted from 1."""

    rows: Sequence[T]
    number: int
    last: int


def part_of(request: Request, found: Sequence[T], size: int) -> Part[T]:
    """The ``size`` rows that the parameter ``page`` asks for; the nearest part where there is no such one."""
    asked = request.query_params.get("page", "1")
    last = max(1, -(-len(found) // size))
    number = min(max(int(asked) if asked.isdecimal() and len(asked) < 7 else 1, 1), last)
    return Part(found[(number - 1) * size : number * size], number, last)
