"""Deleted runs: moved aside, so that a click or a command can bring them back. ``.web/trash`` below the directory of the runs
keeps them until they are removed by hand; ``ernie web`` and ``ernie runs clean`` share it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.files import read_json

#: below the directory of the runs
TRASH = Path(".web", "trash")
_NOTE = ".from.json"
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run in the trash: its name there, where it was below the root, and when it was deleted."""

    name: str
    run: str
    time: float


class Trash:
    """Moves runs between a directory of runs and its trash. ``audit`` gets the command that does the same as what was done."""

    def __init__(self, root: Path, audit: Callable[[list[str]], None] = lambda argv: None) -> None:
        self._root, self._directory, self._audit = root.resolve(), root.resolve() / TRASH, audit

    def put(self, run: Path) -> Deleted:
        """Move a run of the root into the trash."""
        rest = run.resolve().relative_to(self._root)
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}-{run.name}"
        target = self._directory / name
        note = self._directory / f"{name}{_NOTE}"
        deleted = Deleted(name, str(rest), time.time())
        note.write_text(json.dumps({"run": deleted.run, "time": deleted.time}), encoding="utf-8")
        os.rename(run, target)
        self._audit(["mv", str(run), str(target)])
        return deleted

    def all(self) -> list[Deleted]:
        """What is in the trash, the newest first."""
        found = []
        for note in self._directory.glob(f"*{_NOTE}"):
            name = note.name.removesuffix(_NOTE)
            if (self._directory / name).is_dir():
                content = _stored(note)
                found.append(Deleted(name, str(content.get("run")), float(content.get("time", 0))))
        return sorted(found, key=lambda item: -item.time)

    def restore(self, name: str) -> str:
        """Put a run back where it was; its place below the root.

        Raises:
            UsageError: it is not in the trash, or its place is taken.
        """
        item = next((item for item in self.all() if item.name == name), None)
        if item is None:
            raise UsageError("this run is not in the trash", where=name)
        target = (self._root / item.run).resolve()
        if not target.is_relative_to(self._root) or target.exists():
            raise UsageError("the place of this run is taken", where=item.run, fix="move what is there")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._directory / name, target)
        (self._directory / f"{name}{_NOTE}").unlink()
        self._audit(["mv", str(self._directory / name), str(target)])
        return item.run


def _stored(note: Path) -> dict[str, Any]:
    try:
        content = read_json(note, _MOST)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
