"""The run directory before training: made, ours alone, and not another run's. Only names from here are written into it.

resolved.yaml events.jsonl data_report.json skipped_steps.json ckpt/ bad/ logs/rank-N.log control/ model/ report.html loss.png
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from erniecore_system.durable import replace_file
from erniecore_system.files import parse_json

from erniecore.errors import EnvironmentFault, UsageError

EVENTS_NAME = "events.jsonl"
OURS = ("resolved.yaml", EVENTS_NAME, "data_report.json", "ckpt", "model", "quantized")
#: version of the content of a checkpoint's ``state.json``
STATE_FORMAT = 2
#: in a run directory: the settings that the run was started with
SETTINGS = Path("control", "run.json")
log = logging.getLogger("erniecore")
#: seconds to try to take a lock: a process that only checks whether a run is in use takes its locks, too
_PATIENCE = 1.0


class RankLog(logging.FileHandler):
    """The log of a rank. A log that cannot be written ends no run: the rest of it is dropped.

    Attributes:
        fault: why, once that has happened; whoever tells the user empties it.
    """

    fault, _dropped = "", False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._dropped:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        self.fault, self._dropped = f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}", True


def log_fault() -> str:
    """Why this process's log can no longer be written, once; else empty."""
    for handler in log.handlers:
        if isinstance(handler, RankLog) and handler.fault:
            fault, handler.fault = handler.fault, ""
            return fault
    return ""


@contextmanager
def opened(out: Path, rank: int) -> Iterator[None]:
    """Make ``out``, hold its lock and write the log of this rank while the block runs.

    Raises:
        EnvironmentFault: it cannot be written, or another process uses it.
    """
    with locked(out, f"lock-{rank}"):
        with _writing(out):
            handler = RankLog(out / "logs" / f"rank-{rank}.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        before = log.level, log.propagate
        log.setLevel(logging.INFO)
        log.propagate = False  # the console shows events; the log is for afterwards
        try:
            yield
        finally:
            log.setLevel(before[0])
            log.propagate = before[1]
            log.removeHandler(handler)
            with suppress(OSError):
                handler.close()


@contextmanager
def locked(out: Path, name: str) -> Iterator[None]:
    """Make ``out`` and hold ``control/<name>`` while the block runs; raises ``EnvironmentFault`` as :func:`opened`."""
    with _writing(out):
        (out / "logs").mkdir(parents=True, exist_ok=True)
        (out / "control").mkdir(exist_ok=True)
        lock = os.open(out / "control" / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(lock, out)
        yield
    finally:
        os.close(lock)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"the run directory cannot be written: {error.strerror}",
            where=str(error.filename or out),
            fix="choose another directory with run.out (--out)",
            code="ERN-E010",
        ) from error


def _take(lock: int, out: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while not _flock(lock, fcntl.LOCK_EX):
        if time.monotonic() > end:
            holder = os.pread(lock, 100, 0).decode(errors="replace").strip()
            raise EnvironmentFault(
                "another process is training in this directory",
                where=str(out),
                found=holder,
                fix=f"wait for it, stop it (`ernie runs stop {out}`), or choose another run.out",
                code="ERN-E011",
            )
        time.sleep(0.05)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)


def _flock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def rank_lock(rank: int) -> str:
    """The lock that a rank holds from its start on until it has left its record."""
    return f"lock-rank-{rank}"


def holders(out: Path, pattern: str = "lock*") -> dict[str, str]:
    """The locks of the directory that are taken: name -> by whom."""
    found = {}
    for path in sorted((out / "control").glob(pattern)):
        with suppress(OSError), path.open("rb") as file:
            if not _flock(file.fileno(), fcntl.LOCK_SH):
                found[path.name] = file.read(100).decode(errors="replace").strip()
    return found


def in_use(out: Path) -> bool:
    """Whether a command works on the run. Ranks whose launcher was killed do not count: they are about to end."""
    taken = holders(out)
    ranks = [name for name in taken if name.startswith(rank_lock(0)[:-1])]
    commands = [name for name in taken if name in ("lock-run", "lock") or name.startswith("lock-node")]
    return bool(commands) or (bool(taken) and not ranks)


def used(out: Path) -> list[str]:
    """Names in ``out`` that show a run has been there."""
    return [name for name in OURS if (out / name).exists()]


def refuse_used(out: Path) -> None:
    """For ``run.resume=never``: raises ``UsageError`` if ``out`` holds a run; nothing is removed."""
    found = used(out)
    if found:
        raise UsageError(
            "the run directory already holds a run, and run.resume=never does not continue it",
            where=str(out),
            found=", ".join(found),
            fix="choose another run.out, or continue with --resume auto",
            code="ERN-C020",
        )


def last_start(out: Path) -> dict[str, Any] | None:
    """The newest ``run_start`` event in ``out``; ``None`` when there is none. Damaged lines are skipped."""
    path = out / EVENTS_NAME
    if not path.is_file():
        return None
    found = None
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if '"run_start"' in line:
                try:
                    event = parse_json(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and event.get("event") == "run_start":
                    found = event
    return found


def events_size(out: Path) -> int:
    """Bytes of ``events.jsonl`` so far: where this session's events begin."""
    path = out / EVENTS_NAME
    return path.stat().st_size if path.exists() else 0


def end_path(out: Path, rank: int) -> Path:
    """Where a rank says how it ended."""
    return out / "control" / f"rank-{rank}.end.json"


def warning_text(event: Mapping[str, Any]) -> str:
    """A ``warning`` event for people: its message, or what it says instead of one."""
    shown = {k: v for k, v in event.items() if k not in ("event", "time", "kind", "samples")}
    if "message" in shown:
        return str(shown["message"])
    return ", ".join([str(event.get("kind", "")), *(f"{k} {v}" for k, v in shown.items())]).strip(", ")


def record_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Leave in ``out`` what ``unfinished.choose`` compares; ``settings``: as JSON."""
    replace_file(out / SETTINGS, json.dumps({"settings": settings}).encode())
