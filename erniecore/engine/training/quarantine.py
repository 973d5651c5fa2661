"""Steps that a run passes over: their data ruined it once. The list is a file in the run directory, because it must
survive the return to a checkpoint that knows nothing of it; every continuation of the run reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from erniecore.durable import replace_file
from erniecore.errors import CheckpointError

QUARANTINE_NAME = "quarantine.json"


@dataclass(frozen=True, slots=True)
class Window:
    """Steps ``first`` to ``last`` are not learned. ``why``: what was wrong; ``rows``: ``file:line`` of their samples, as
    far as they were seen."""

    first: int
    last: int
    why: str
    rows: tuple[str, ...] = ()


class Quarantine:
    """The windows of one run, oldest first.

    Args:
        out: the run directory. writes: whether this process keeps the file.
    Raises:
        CheckpointError: the file is not what this class writes.
    """

    def __init__(self, out: Path, *, writes: bool = True) -> None:
        self.path, self._writes = out / QUARANTINE_NAME, writes
        self.windows: list[Window] = []
        if self.path.is_file():
            try:
                entries = json.loads(self.path.read_text(encoding="utf-8"))
                self.windows = [Window(**{**entry, "rows": tuple(entry["rows"])}) for entry in entries]
            except (ValueError, TypeError, KeyError) as error:
                raise CheckpointError(
                    "the list of steps to pass over cannot be read",
                    where=str(self.path),
                    found=str(error),
                    fix="restore it, or remove it to learn from those steps again",
                ) from error

    def covers(self, step: int) -> bool:
        """Whether ``step`` is passed over."""
        return any(window.first <= step <= window.last for window in self.windows)

    def add(self, first: int, last: int, why: str, rows: Sequence[str]) -> Window:
        """Remember a window, on disk before anything else happens."""
        window = Window(first, last, why, tuple(rows))
        if self._writes:
            document = [asdict(w) for w in (*self.windows, window)]
            replace_file(self.path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
        self.windows.append(window)
        return window
