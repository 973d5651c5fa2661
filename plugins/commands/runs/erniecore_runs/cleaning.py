"""Which runs of a directory may go: by how they ended and how long ago. A run that a process holds is never one of them."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from erniecore.api.runs import EVENTS_NAME
from erniecore_runs.latest import facts
from erniecore_runs.record import find_runs
from erniecore_runs.stopping import taken_locks

_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Old:
    """A run that may go: how it ended, its step, bytes of its files, days since its last event."""

    path: Path
    state: str
    step: int
    size: int
    days: float


def old_runs(directory: Path, states: Collection[str], days: float) -> list[Old]:
    """Runs of a directory in one of ``states`` whose last event is at least so many days old, the oldest first.

    Raises:
        UsageError: no such directory.
    """
    found, now = [], time.time()
    for path in find_runs(directory):
        told = facts(path)
        age = (now - (path / EVENTS_NAME).stat().st_mtime) / _DAY
        if path != directory and told["state"] in states and age >= days and not taken_locks(path):
            found.append(Old(path, told["state"], told["step"] or 0, _size(path), age))
    return found


def _size(directory: Path) -> int:
    return sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file() and not file.is_symlink())
