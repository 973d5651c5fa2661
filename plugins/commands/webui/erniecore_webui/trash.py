"""Deleted runs: moved aside, so that a click can bring them back. ``.web/trash`` keeps them until they are removed by hand."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from erniecore.api import UsageError
from erniecore_webui.actions import Actions
from erniecore_webui.state_files import stored_object

_NOTE = ".from.json"


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run in the trash: its name there, where it was below the root, and when it was deleted."""

    name: str
    run: str
    time: float


class Trash:
    """Moves runs between the root and the trash."""

    def __init__(self, root: Path, state: Path, actions: Actions) -> None:
        self._root, self._directory, self._actions = root, state / "trash", actions
        self._directory.mkdir(exist_ok=True)

    def put(self, run: Path) -> Deleted:
        """Move a run of the root into the trash."""
        rest = run.relative_to(self._root)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}-{run.name}"
        target = self._directory / name
        note = self._directory / f"{name}{_NOTE}"
        deleted = Deleted(name, str(rest), time.time())
        note.write_text(json.dumps({"run": deleted.run, "time": deleted.time}), encoding="utf-8")
        os.rename(run, target)
        self._actions.audit(["mv", str(run), str(target)])
        return deleted

    def all(self) -> list[Deleted]:
        """What is in the trash, the newest first."""
        found = []
        for note in self._directory.glob(f"*{_NOTE}"):
            name = note.name.removesuffix(_NOTE)
            if (self._directory / name).is_dir():
                content = stored_object(note)
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
        self._actions.audit(["mv", str(self._directory / name), str(target)])
        return item.run
