"""Which run a command without ``--out`` means: the unfinished one in ``runs/`` that the same settings and data began, or a
new one. Reads small files only; a run that a process works on is left to it. No paddle.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_system.files import parse_json, read_json

from erniecore.engine.drift import compare
from erniecore.engine.preparation import rundir
from erniecore.errors import CheckpointError, DataError

#: where runs without ``run.out`` are
ROOT = Path("runs")
#: bytes at the end of events.jsonl among which the last ``run_end`` is
_TAIL = 1 << 16


@dataclass(frozen=True)
class Choice:
    """The name of the run, below :data:`ROOT`, what the user should read about it, and whether it is a new one."""

    name: str
    note: str = ""
    new: bool = False

    def outdated(self, root: Path = ROOT) -> bool:
        """Whether another command has begun, or finished, the run since it was chosen; its lock must be held."""
        return bool(rundir.used(root / self.name)) if self.new else _status(root / self.name) == "finished"


def choose(settings: Mapping[str, Any], fresh: str, *, root: Path = ROOT) -> Choice:
    """The newest unfinished run of these settings and this data, or ``fresh``.

    Args:
        settings: as JSON; ``run.resume`` decides: ``never``, or a checkpoint's directory, is always a new run.

    Raises:
        CheckpointError: ``run.resume`` is ``must``, and there is no such run.
    """
    resume = settings["run"]["resume"]
    contents: dict[str, str] = {}
    found = (
        {path: _reason(path, settings, contents) for path in _unfinished(root)} if resume in ("auto", "must") else {}
    )
    same = [path for path, reason in found.items() if not reason]
    if same:
        more = f"; the newest of {len(same)}, then {', '.join(map(str, same[1:]))}" if len(same) > 1 else ""
        return Choice(same[0].name, f"continues {same[0]}, the unfinished run of this command (--new: another){more}")
    if resume == "must":
        said = "; ".join(f"{path}: {reason}" for path, reason in found.items())
        raise CheckpointError(
            "no unfinished run to continue",
            where=str(root),
            found=said,
            fix="start one with --resume auto, or name its directory with --out",
        )
    names = (fresh if not n else f"{fresh}-{n + 1}" for n in range(1000))
    like = "????????-??????" + glob.escape(fresh[15:])  # from the clock, as ``prepare.name_of`` makes it
    left = sorted(path.name for path in root.glob(like) if _is_unbegun(path))
    name = next(iter(left), "") or next(name for name in names if not (root / name).exists())
    path, reason = next(iter(found.items()), (root, ""))
    return Choice(name, f"a new run, {root / name}: the unfinished {path} {reason}" if reason else "", new=True)


def _is_unbegun(path: Path) -> bool:
    """Whether a command made this directory and ended before it wrote its settings, as after a second Ctrl-C."""
    if rundir.used(path) or (path / rundir.SETTINGS).exists():
        return False
    inside = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}
    return all(name.startswith(("control/lock", "logs/rank-")) for name in inside) and not rundir.in_use(path)


def _unfinished(root: Path) -> Iterator[Path]:
    """Runs below ``root`` that have not finished, the newest first."""
    known = [path.parent.parent for path in root.glob(f"*/{rundir.SETTINGS}")]
    for path in sorted(known, key=lambda path: (_last_change(path), path.name), reverse=True):
        if _status(path) != "finished":
            yield path


def _last_change(path: Path) -> float:
    for name in (rundir.EVENTS_NAME, rundir.SETTINGS):
        with suppress(OSError):
            return (path / name).stat().st_mtime
    return 0.0  # removed just now


def _status(path: Path) -> str:
    """With which the last start of a run ended; empty: it did not say."""
    with suppress(OSError), (path / rundir.EVENTS_NAME).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError):
                event = parse_json(line)
                if isinstance(event, dict) and event.get("event") in ("run_start", "run_end"):
                    return str(event.get("status", ""))
    return ""


def _reason(path: Path, settings: Mapping[str, Any], contents: dict[str, str]) -> str:
    """Why a run is another one than that of ``settings``; empty: it is the same. ``contents``: see :func:`_changed`."""
    try:
        before = read_json(path / rundir.SETTINGS)["settings"]
        differences = [str(d) for d in compare(before, settings) if not d.safe]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # torn, or not ours
        return "does not say which settings it has"
    if differences:
        more = f" and {len(differences) - 2} more" if len(differences) > 2 else ""
        return f"has other settings ({', '.join(differences[:2])}{more})"
    if rundir.in_use(path):
        return "is in use by another process"
    changed = _changed_file(path, contents)
    return f"has seen other data ({changed} has changed)" if changed else ""


def _changed_file(path: Path, contents: dict[str, str]) -> str:
    """A training file that is not the one that the newest checkpoint has seen."""
    for checkpoint in reversed(list_checkpoints(path / "ckpt")):
        try:
            files = read_json(checkpoint / "state.json")["data"]["files"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged: an older one counts
        began = _began(path)
        return next((str(file["path"]) for file in files if _changed(file, began, contents)), "")
    return ""


def _began(path: Path) -> float:
    """Seconds since the epoch at which a run began; 0: it does not say. Its data were read before; a checkpoint that is newer
    than a change of the data may still come from what they were."""
    with suppress(OSError, ValueError, KeyError, TypeError), (path / rundir.EVENTS_NAME).open("rb") as file:
        return float(parse_json(file.readline(_TAIL))["time"])
    return 0.0


def _changed(file: Mapping[str, Any], began: float, contents: dict[str, str]) -> bool:
    """Whether a data file is another one; it is read only where something has happened to it since ``began``, and once.
    ``contents``: path -> hash of what has been read."""
    from erniecore.data.shards import content_of, stamp_of

    with suppress(OSError, DataError):  # what is gone, or was at a URL, is told where it is read
        path = Path(file["path"])
        if max(ns for _, _, *times in stamp_of(path) for ns in times) > began * 1e9:
            if file["path"] not in contents:
                contents[file["path"]] = content_of(path)["sha256"]
            return bool(contents[file["path"]] != file["sha256"])
    return False
