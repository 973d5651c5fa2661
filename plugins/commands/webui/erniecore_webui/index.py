"""The list of runs below a root: found by their events file, summed up from its first and last bytes, cached by its time.

Ten thousand runs are one ``stat`` each; those on the page that is looked at are read at once. The others are read behind it, so
that a search knows their names, and what they said is kept in ``.web/facts.json``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_runs.latest import facts, state_now
from erniecore_runs.stopping import locked_inodes

from erniecore.api import UsageError
from erniecore.api.command import store_text
from erniecore.api.runs import EVENTS_NAME
from erniecore_webui.state_files import stored_object

#: directories below the root in which runs are looked for; seconds for which the list is believed, at least and as a multiple of
#: the processor time that it took
_DEPTH, _FRESH, _REST = 3, 2.0, 100
#: seconds that a search reads runs that nobody read yet; runs that are read between two rests, seconds of a rest
_SEARCH, _BATCH, _PAUSE, _IDLE = 0.3, 50, 0.02, 2.0
#: changed facts after which all are kept; most that are
_CHANGES, _MOST = 200, 30_000


@dataclass(frozen=True, slots=True)
class Found:
    """A run directory: its path below the root, and time (ns) and bytes of its events."""

    run: str
    changed: int
    size: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a row of the list shows. Numbers are None where no event told."""

    run: str
    name: str
    state: str
    step: int | None
    total: int | None
    loss: float | None
    rate: float | None
    eta: float | None
    memory: float | None
    started: float | None
    changed: float
    method: str
    model: str
    device: str
    tags: tuple[str, ...]

    @property
    def id(self) -> str:
        """The run in an address."""
        return run_id(self.run)


class Selected(NamedTuple):
    """Runs that match; ``unread``: runs of which only the path was looked at, since nobody has read their events yet."""

    found: list[Found]
    unread: int


_TOLD = frozenset(field.name for field in fields(Summary)) - {"run", "changed", "tags"}


def run_id(run: str) -> str:
    """A path below the root as one part of an address."""
    return run.replace("~", "~0").replace("/", "~1")


class Index:
    """Finds runs and sums them up. Methods may be called from any thread."""

    def __init__(self, root: Path, state: Path) -> None:
        self._root, self._tags_file = root, state / "tags.json"
        self._lock = threading.Lock()
        self._found: list[Found] = []
        self._until = 0.0
        self._facts: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._facts_file, self._changes = state / "facts.json", 0
        self._known()

    def forget(self) -> None:
        """Look again at the next question."""
        self._until = 0.0

    def found(self) -> list[Found]:
        """Every run, the one with the latest event first."""
        with self._lock:
            if time.monotonic() > self._until:
                start = time.thread_time()
                self._found = sorted(_scan(self._root, self._root, _DEPTH), key=lambda f: (-f.changed, f.run))
                self._until = time.monotonic() + max(_FRESH, _REST * (time.thread_time() - start))
                gone = self._facts.keys() - {found.run for found in self._found}
                for run in gone:
                    del self._facts[run]
            return self._found

    def path(self, id_: str) -> Path:
        """The directory of a run.

        Raises:
            UsageError: there is none, or it is not below the root.
        """
        run = id_.replace("~1", "/").replace("~0", "~")
        path = (self._root / run).resolve()
        if "\0" in run or not path.is_relative_to(self._root) or path == self._root or not _is_run(path):
            raise UsageError("there is no such run", where=run, next="ernie runs list")
        return path

    def name_of(self, path: Path) -> str:
        """A run's path below the root."""
        return str(path.relative_to(self._root))

    def select(self, text: str = "", state: str = "", tag: str = "") -> Selected:
        """Runs whose path, name, model, method or tags contain every word of ``text``, in this state, with this tag.

        It reads for so long; of runs that are unread then only the path and the tags are searched.
        """
        tags = self.tags()
        found = self.found()
        if tag:
            found = [f for f in found if tag in tags.get(f.run, ())]
        terms = text.lower().split()
        unread = self._read_some(found, _SEARCH) if terms or state else 0
        if terms:
            found = [f for f in found if all(term in self._searched(f, tags) for term in terms)]
        if state:
            locked = locked_inodes()
            found = [f for f in found if self._is_read(f) and self._summary(f, tags, locked).state == state]
        return Selected(found, unread)

    def work(self, stopping: threading.Event) -> None:
        """Read runs that nobody looked at, until asked to stop; what they say is kept for the next server."""
        self.found()
        last: list[Found] = []
        while not stopping.wait(_IDLE):
            if self._found is last:  # nobody looks: nothing is searched for
                continue
            last = self._found
            for number, item in enumerate(last):
                if self._is_read(item):
                    continue
                self._read(item)
                if number % _BATCH == 0 and stopping.wait(_PAUSE):
                    break
            if self._changes >= _CHANGES:
                self.keep()

    def keep(self) -> None:
        """Keep what was read for the next server."""
        self._changes = 0
        kept = {run: [*version, told] for run, (version, told) in list(self._facts.items())[-_MOST:]}
        with suppress(OSError):
            store_text(self._facts_file, json.dumps(kept, separators=(",", ":")), "keeping the list of runs")

    def _known(self) -> None:
        """What another server kept; it counts for events that did not change."""
        for run, kept in stored_object(self._facts_file).items():
            match kept:
                case [int(changed), int(size), dict() as told] if told.keys() == _TOLD:
                    self._facts[run] = ((changed, size), dict(told))

    def _read_some(self, found: list[Found], seconds: float) -> int:
        """Read those that are not read for so long; how many are left."""
        end = time.monotonic() + seconds
        left = [item for item in found if not self._is_read(item)]
        for number, item in enumerate(left):
            if time.monotonic() > end:
                return len(left) - number
            self._read(item)
        return 0

    def _is_read(self, found: Found) -> bool:
        known = self._facts.get(found.run)
        return known is not None and known[0] == (found.changed, found.size)

    def summaries(self, found: list[Found]) -> list[Summary]:
        """The rows for these runs."""
        tags, locked = self.tags(), locked_inodes()
        return [self._summary(item, tags, locked) for item in found]

    def summary(self, path: Path) -> Summary:
        """The row of one run."""
        stat = _events_stat(path)
        changed, size = (stat.st_mtime_ns, stat.st_size) if stat else (path.stat().st_mtime_ns, 0)
        return self._summary(Found(self.name_of(path), changed, size), self.tags(), locked_inodes())

    def tags(self) -> dict[str, list[str]]:
        """Run -> its tags."""
        return {run: [str(tag) for tag in tags] for run, tags in stored_object(self._tags_file).items()}

    def set_tags(self, run: str, tags: list[str]) -> None:
        """Give a run these tags and no others."""
        with self._lock:
            now = {**self.tags(), run: sorted({tag.strip()[:40] for tag in tags if tag.strip()})[:20]}
            store_text(self._tags_file, json.dumps({k: v for k, v in now.items() if v}), "tagging a run")

    def _searched(self, found: Found, tags: dict[str, list[str]]) -> str:
        told = self._facts[found.run][1] if self._is_read(found) else {"name": "", "model": "", "method": ""}
        parts = (found.run, told["name"], told["model"], told["method"], *tags.get(found.run, ()))
        return " ".join(map(str, parts)).lower()

    def _summary(self, found: Found, tags: dict[str, list[str]], locked: frozenset[int]) -> Summary:
        told = self._read(found)
        state = state_now(self._root / found.run, told["state"], locked)
        return Summary(run=found.run, changed=found.changed / 1e9, tags=tuple(tags.get(found.run, ())),
                       **{**told, "state": state})  # fmt: skip

    def _read(self, found: Found) -> dict[str, Any]:
        version = (found.changed, found.size)
        known = self._facts.get(found.run)
        if known is None or known[0] != version:
            known = (version, facts(self._root / found.run, found.size))
            self._facts[found.run] = known
            self._changes += 1
        return known[1]


def _events_stat(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return os.stat(path / EVENTS_NAME)
    return None


def _is_run(path: Path) -> bool:
    return (path / EVENTS_NAME).is_file() or (path / "control").is_dir()


def _scan(root: Path, directory: Path, depth: int) -> Iterator[Found]:
    """The runs below a directory; a run is not searched for others, links are not followed."""
    try:
        entries = [e for e in os.scandir(directory) if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    cut = len(str(root)) + 1
    for entry in entries:
        try:
            stat = os.stat(f"{entry.path}/{EVENTS_NAME}")
        except OSError:
            if depth > 1:
                yield from _scan(root, Path(entry.path), depth - 1)
            continue
        yield Found(entry.path[cut:], stat.st_mtime_ns, stat.st_size)
