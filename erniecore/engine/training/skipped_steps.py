"""Steps that a run skips because their data ruined it once. The list is a file in the run directory, because it must
survive the rollback to a checkpoint that knows nothing of it; every continuation of the run reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from erniecore_system.durable import replace_file
from erniecore_system.files import read_json

from erniecore.errors import CheckpointError

#: in the run directory; and the name that 0.1.0 wrote, which is read where the new one is not there
SKIPPED_NAME, NAME_BEFORE = "skipped_steps.json", "quarantine.json"


@dataclass(frozen=True, slots=True)
class Window:
    """Steps ``first`` to ``last`` are not trained on. ``why``: what was wrong; ``rows``: ``file:line`` of their samples, as
    far as they were seen."""

    first: int
    last: int
    why: str
    rows: tuple[str, ...] = ()


def find_list(out: Path) -> Path | None:
    """The list of a run directory, if there is one."""
    return next((out / name for name in (SKIPPED_NAME, NAME_BEFORE) if (out / name).is_file()), None)


class SkippedSteps:
    """The windows of one run, oldest first.

    Args:
        out: the run directory. writes: whether this process keeps the file.
    Raises:
        CheckpointError: the file is not what this class writes.
    """

    def __init__(self, out: Path, *, writes: bool = True) -> None:
        self.path, self._writes = out / SKIPPED_NAME, writes
        self.windows: list[Window] = []
        path = find_list(out)
        if path is not None:
            try:
                entries = read_json(path)
                self.windows = [Window(**{**entry, "rows": tuple(entry["rows"])}) for entry in entries]
                if not all(type(step) is int for window in self.windows for step in (window.first, window.last)):
                    raise TypeError("a step that is no whole number")
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise CheckpointError(
                    "the list of skipped steps cannot be read",
                    where=str(path),
                    found=str(error),
                    fix="restore it, or remove it to train on those steps again",
                ) from error

    def covers(self, step: int) -> bool:
        """Whether ``step`` is skipped."""
        return any(window.first <= step <= window.last for window in self.windows)

    def add(self, first: int, last: int, why: str, rows: Sequence[str]) -> Window:
        """Remember a window, on disk before anything else happens."""
        window = Window(first, last, why, tuple(rows))
        if self._writes:
            document = [asdict(w) for w in (*self.windows, window)]
            replace_file(self.path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
        self.windows.append(window)
        return window
