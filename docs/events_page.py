"""The page ``docs/reference/events.md``: each event of a run with its fields, from the types of ``erniecore.api.events``."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typing_extensions import NotRequired

from erniecore.api import events


def markdown() -> str:
    """The whole page, without the notice."""
    own = inspect.getdoc(inspect.getmodule(events.Event)) or ""
    lines = ["# Events", "", own, "", "Every event has", "", *_table(events.Event, set())]
    common = set(events.Event.__annotations__)
    for name, kind in events.EVENTS.items():
        lines += ["", f"## {name}", "", " ".join((inspect.getdoc(kind) or "").split()), "", *_table(kind, common)]
    counts = ", ".join(f"`{name}`" for name in sorted(events.COUNTS))
    lines += ["", "## Metrics", "", f"{inspect.getdoc(events.metrics)}", "", f"Counts and times are {counts}."]
    return "\n".join(lines) + "\n"


def _table(kind: type, left_out: set[str]) -> list[str]:
    rows = ["| field | type | |", "|---|---|---|"]
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name not in left_out:
            optional = get_origin(hint) is NotRequired
            inner = get_args(hint)[0] if optional else hint
            base, text = get_args(inner)[:2] if get_origin(inner) is Annotated else (inner, "")
            rows.append(f"| `{name}` | {_type(base)}{', optional' if optional else ''} | {text} |")
    return rows


def _type(hint: Any) -> str:
    shown = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return shown.replace("typing.", "").replace("|", "or").replace("None", "null")
