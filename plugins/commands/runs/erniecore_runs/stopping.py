"""Stopping a run from outside: politely by its control file, or at once by its processes. Reads locks; no paddle."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from erniecore.api import EnvironmentFault, UsageError
from erniecore.api.runs import EVENTS_NAME
from erniecore_runs.record import not_a_run

#: seconds until processes that were killed have let go of the run directory
_PATIENCE = 30.0


def ask_to_stop(run: Path) -> None:
    """Ask a run to save after its step and to end, as SIGTERM does.

    Raises:
        UsageError: this is no run directory, or nothing runs in it.
    """
    _check_running(run)
    control = run / "control" / "stop"
    control.touch()
    if not taken_locks(run):  # it has just ended: the next start must not find the file
        control.unlink(missing_ok=True)


def kill(run: Path) -> list[int]:
    """End the processes of a run on this machine at once, those first that would start others again; their ids.

    Raises:
        UsageError: this is no run directory, or nothing runs in it.
        EnvironmentFault: its processes are another user's or on another machine, or do not end.
    """
    _check_running(run)
    killed: list[int] = []
    for lock in sorted(taken_locks(run), key=lambda lock: lock.name.removeprefix("lock-").isdigit()):
        for process in holders(lock):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise _cannot(run, f"process {process} is another user's") from error
            killed.append(process)
    end = time.monotonic() + _PATIENCE
    while taken := taken_locks(run):
        if not killed or time.monotonic() > end:
            raise _cannot(run, f"{taken[0]} is taken by a process that this machine does not show")
        time.sleep(0.05)
    (run / "control" / "stop").unlink(missing_ok=True)
    return killed


def _cannot(run: Path, found: str) -> EnvironmentFault:
    return EnvironmentFault(
        "the run cannot be ended from here",
        where=str(run),
        found=found,
        fix="end it where it runs, or leave out --now: then it ends by itself after its step",
    )


def _check_running(run: Path) -> None:
    if not (run / EVENTS_NAME).is_file() and not (run / "control").is_dir():
        raise not_a_run(run)
    if not taken_locks(run):
        raise UsageError("nothing runs in this directory", where=str(run), next=f"ernie runs list {run}")


def taken_locks(run: Path) -> list[Path]:
    """The lock files of a run directory that some process holds."""
    return [path for path in sorted((run / "control").glob("lock*")) if _is_taken(path)]


def _is_taken(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def holders(lock: Path) -> Iterator[int]:
    """Processes of this machine that hold a lock file, as the kernel lists them (``/proc/locks``)."""
    inode = f":{lock.stat().st_ino}"
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if "FLOCK" in fields and any(field.endswith(inode) for field in fields):
            process = int(fields[fields.index("FLOCK") + 3])
            if process > 0 and _has_open(process, lock):
                yield process


def _has_open(process: int, path: Path) -> bool:
    """Whether a process has a file open: another file system may have the same inode number."""
    with suppress(OSError):
        return any(os.path.samefile(link, path) for link in Path(f"/proc/{process}/fd").iterdir() if link.exists())
    return False


def locked_inodes() -> frozenset[int]:
    """Inode numbers of all files of this machine that a process holds a lock on: one look for any number of runs."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    fields = (line.split() for line in lines)
    return frozenset(int(part.rpartition(":")[2]) for f in fields if "FLOCK" in f for part in f if part.count(":") == 2)


def runs_now(run: Path, locked: frozenset[int]) -> bool:
    """Whether a process holds a run directory. ``locked``, from :func:`locked_inodes`, saves the look at its locks."""
    with suppress(OSError):
        locks = [entry for entry in os.scandir(run / "control") if entry.name.startswith("lock")]
        return any(lock.inode() in locked for lock in locks) and bool(taken_locks(run))
    return False
