"""Which samples of which step were learned without the teacher: a run that repeats steps behind a checkpoint must decide the
same again. One line of a file for each step, on disk before the step uses it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from erniecore_system.files import parse_json


class Decisions:
    """The decisions of a run. ``path``: their file; lines that are cut off by a death are no decisions."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, dict[int, frozenset[bytes]]()
        if not path.is_file():
            return
        for line in path.read_bytes().splitlines():
            try:
                values = parse_json(line)
                self._found[int(values["step"])] = frozenset(bytes.fromhex(key) for key in values["skipped"])
            except (ValueError, TypeError, LookupError):  # half a line
                continue

    def of(self, step: int) -> frozenset[bytes] | None:
        """Keys of the samples that ``step`` had to do without; ``None``: it was not decided yet."""
        return self._found.get(step)

    def add(self, step: int, skipped: Collection[bytes]) -> None:
        """Decide a step, durably."""
        line = json.dumps({"step": step, "skipped": sorted(key.hex() for key in skipped)})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(f"\n{line}\n".encode())  # the line before may have been cut off
            file.flush()
            os.fsync(file.fileno())
        self._found[step] = frozenset(skipped)
