"""Events of the launcher, in the run's ``events.jsonl`` beside those of the ranks. The first machine alone writes them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path


class Journal:
    """Appends events to the file of a run; a disk that fails ends nothing."""

    def __init__(self, out: Path) -> None:
        self._path = out / "events.jsonl"
        self._at = 0

    def mark(self) -> None:
        """Remember where the events of the next start begin."""
        with suppress(OSError):
            self._at = self._path.stat().st_size

    def slow(self) -> set[str]:
        """Machines that the callback ``slow-ranks`` has named since :meth:`mark`."""
        found = set()
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if b'"slow_rank"' in line:
                    with suppress(ValueError):
                        found.add(str(json.loads(line).get("node")))
        return found

    def trains(self) -> bool:
        """Whether the ranks have made a step since :meth:`mark`."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._at)
            return b'"event": "step"' in file.read()
        return False

    def write(self, event: str, **fields: object) -> None:
        """One event, a line of its own: a killed rank may have left half a line."""
        text = json.dumps({"event": event, "time": time.time(), **fields}, ensure_ascii=False)
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + text + "\n")
