"""``events``: appends every event of the run to ``events.jsonl``, one JSON object per line, flushed at once. The
file is only ever appended to; after a resume a step may occur twice, and the later line counts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore.engine.preparation.rundir import EVENTS_NAME
from erniecore.plugin import Plugin, hookimpl
from erniecore.types.run import RunView


class EventsPlugin(Plugin):
    """Writes events to ``events.jsonl``."""

    kind = "callback"
    name = "events"
    summary = "writes every event of a run to events.jsonl"

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        append_line(run.out / EVENTS_NAME, json.dumps(plain(event), ensure_ascii=False, allow_nan=False))


def append_line(path: Path, line: str) -> None:
    """Append ``line``; first ends a line that a killed process left half written. ``OSError`` for a link: it leads elsewhere."""
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)) as file:
        if file.tell() and not _ends_with_newline(path):
            file.write(b"\n")
        file.write(line.encode() + b"\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def plain(value: Any) -> Any:
    """``value`` as strict JSON: paths as text, numbers that are not finite as ``null``, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


plugin = EventsPlugin()
