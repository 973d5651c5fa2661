"""Curves of the runs that were looked at: read in the background, stored in ``.web/curves``, and sampled until they are whole.

A file of a million steps takes seconds to read. The first answer has what was read so far and, of the rest, single steps from
all over the file; a server that was killed goes on where the last one stored what it had.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from erniecore.api.command import store_text
from erniecore.api.events import metrics
from erniecore.api.runs import EVENTS_NAME
from erniecore_webui.curves import Curves
from erniecore_webui.state_files import stored_object

#: runs that are kept in memory, and on disk
_RUNS, _STORED = 16, 64
#: bytes of events that are read anew rather than stored; bytes after which a long file is stored in between
_SMALL, _OFTEN = 4 << 20, 64 << 20
#: steps that are sampled from what was not read yet, and bytes in which the next line is looked for
_SAMPLES, _LINE = 400, 4 << 10
_TURN, _PAUSE = 0.1, 0.2


class CurveStore:
    """Curves by run directory. Methods may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._runs: OrderedDict[Path, Curves] = OrderedDict()
        self._stored: dict[Path, int] = {}
        self._asked: set[Path] = set()

    def of(self, path: Path) -> Curves:
        """The curves of a run directory, as far as they were read; not read on."""
        with self._lock:
            if path not in self._runs:
                curves = self._runs[path] = Curves(path)
                if curves.take_up(stored_object(self._file(path))):
                    self._stored[path] = curves.offset
            self._runs.move_to_end(path)
            while len(self._runs) > _RUNS:
                gone, _ = self._runs.popitem(last=False)
                self._stored.pop(gone, None)
                self._asked.discard(gone)
            return self._runs[path]

    def read(self, path: Path) -> dict[str, Any]:
        """The answer to a page: ``loaded``, the points so far, and ``ahead``, samples of the rest, which is read on behind it."""
        curves = self.of(path)
        loaded = curves.read(_TURN)
        found = {"loaded": loaded, **curves.points()}
        if loaded < 1:
            self._asked.add(path)
            found["ahead"] = samples(path / EVENTS_NAME, found["offset"])
        else:
            self._store(path, curves)
        return found

    def work(self, stopping: threading.Event) -> None:
        """Read on what was asked for, until asked to stop."""
        while not stopping.wait(0 if self._asked else _PAUSE):
            for path in list(self._asked):
                curves = self.of(path)
                whole = curves.read(_TURN) >= 1
                if whole:
                    self._asked.discard(path)
                if whole or curves.offset - self._stored.get(path, 0) > _OFTEN:
                    self._store(path, curves)

    def _store(self, path: Path, curves: Curves) -> None:
        """Keep them on disk, where that spares reading much."""
        if curves.offset - self._stored.get(path, 0) < _SMALL or (content := curves.stored()) is None:
            return
        self._stored[path] = curves.offset
        with suppress(OSError):
            self._directory.mkdir(exist_ok=True)
            store_text(self._file(path), json.dumps(content, separators=(",", ":")), "keeping curves")
            files = sorted(self._directory.glob("*.json"), key=lambda file: -file.stat().st_mtime)
            for file in files[_STORED:]:
                file.unlink(missing_ok=True)

    def _file(self, path: Path) -> Path:
        return self._directory / f"{hashlib.blake2b(bytes(path), digest_size=16).hexdigest()}.json"


def samples(path: Path, offset: int) -> dict[str, dict[str, list[float]]]:
    """Metric -> ``x`` (steps), ``y`` of single steps, evenly spread over the bytes behind ``offset``."""
    found: dict[str, dict[str, list[float]]] = {}
    last = -1
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        for number in range(_SAMPLES):
            file.seek(offset + (size - offset) * number // _SAMPLES)
            event = _step_in(file.read(_LINE))
            step = event.get("step")
            if not isinstance(step, int) or step <= last:
                continue
            last = step
            for name, value in metrics(event).items():
                curve = found.setdefault(name, {"x": [], "y": []})
                curve["x"].append(step)
                curve["y"].append(value)
    return found


def _step_in(piece: bytes) -> dict[str, Any]:
    """The first whole event of a step in some bytes; ``{}`` without one."""
    for line in piece.split(b"\n")[1:-1]:
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "step":
                return event
    return {}
