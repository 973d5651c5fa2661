"""Where a run is now, from the first and last bytes of its events: files of any length cost the same.

:mod:`erniecore_runs.record` reads whole files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from erniecore.api.files import parse_json
from erniecore.api.runs import EVENTS_NAME
from erniecore_runs.record import number
from erniecore_runs.stopping import runs_now

#: bytes of the events that are read, at each end
_HEAD, _TAIL = 32 << 10, 48 << 10
STATES = ("running", "finished", "stopped", "interrupted", "failed")
#: statuses of ``run_end`` that are no failure
_ENDS = {"finished": "finished", "stopped": "stopped", "interrupted": "stopped", "preempted": "stopped"}


def facts(path: Path, size: int | None = None) -> dict[str, Any]:
    """What the events tell: ``name``, ``state``, ``step`` of ``total``, ``loss``, ``rate`` (tokens per second), ``eta``
    (seconds), ``memory`` (bytes), ``started`` (seconds since 1970), ``method``, ``model`` and ``device``. Numbers are None
    where no event told. ``size``: bytes of the events, where the caller knows. Whether a process is there is not looked at:
    :func:`state_now`.
    """
    first, last = _ends(path, size)
    start = next((e for e in reversed(last) if e.get("event") == "run_start"), None) or next(
        (e for e in first if e.get("event") == "run_start"), {}
    )
    after = [e for e in last if e.get("event") in ("run_start", "run_end")]
    end = after[-1] if after and after[-1].get("event") == "run_end" else None
    step: dict[str, Any] = next((e for e in reversed(last) if e.get("event") == "step"), {})
    plugins = start.get("plugins")
    plugins = plugins if isinstance(plugins, dict) else {}
    status = str(end.get("status", "finished")) if end else ""
    return {
        "name": str(start.get("name") or path.name),
        "state": _ENDS.get(status, "failed") if end else "interrupted",
        "step": _int(step.get("step")),
        "total": _int(start.get("total_steps")),
        "loss": number(step.get("loss")),
        "rate": number(step.get("tokens_per_s")),
        "eta": number(step.get("eta")) if not end else None,
        "memory": number(step.get("peak_memory")),
        "started": number(first[0].get("time")) if first else None,
        "method": str(plugins.get("method", "")),
        "model": str(plugins.get("model", "")),
        "device": str(start.get("device", "")),
    }


def state_now(path: Path, state: str, locked: frozenset[int]) -> str:
    """A state of :func:`facts`, or ``running`` where a process of this machine holds the directory (``locked_inodes``)."""
    return "running" if state in ("interrupted", "stopped") and runs_now(path, locked) else state


def duration(seconds: float) -> str:
    """``4.2 s``, ``3m 05s``, ``2h 07m``, ``3d 04h``."""
    if seconds < 60 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24:02d}h"


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ends(path: Path, size: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events in the first and in the last bytes of the file; the same ones of a short file."""
    try:
        with (path / EVENTS_NAME).open("rb") as file:
            size = os.fstat(file.fileno()).st_size if size is None else size
            head = file.read(_HEAD)
            if size <= _HEAD:
                events = list(_events(head.split(b"\n")))
                return events, events
            file.seek(max(0, size - _TAIL))
            tail = file.read(_TAIL + (1 << 20))
    except OSError:
        return [], []
    return list(_events(head.split(b"\n")[:1])), list(_events(tail.split(b"\n")[1:]))


def _events(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = parse_json(line)
            if isinstance(event, dict):
                yield event
