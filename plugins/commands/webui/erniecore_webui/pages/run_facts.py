"""What a run's files tell beside its curves: the last start and end, checkpoints, rows of the data that were not taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore_runs.samples import sample_rows

from erniecore.api.files import parse_json
from erniecore.api.runs import EVENTS_NAME, warning_text
from erniecore_webui.state_files import stored_object

#: bytes at both ends of the events that are looked at
_BYTES = 256 << 10
_ERRORS = 200


@dataclass(slots=True)
class LastEvents:
    """The newest start, the end that follows it, the warnings and the last evaluation near the end of the events; files of
    samples."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    #: callback -> its file of samples
    samples: dict[str, str] = field(default_factory=dict)


def last_events(path: Path) -> LastEvents:
    """Read from the beginning and the end of the file, whatever its length."""
    found = LastEvents()
    for event in _events(path):
        kind = event.get("event")
        if kind == "run_start":
            found.start, found.end = event, {}
        elif kind == "run_end":
            found.end = event
        elif kind == "warning":
            found.warnings.append(warning_text(event))
        elif kind == "eval":
            found.evaluation = event
        elif kind == "evaluation" and event.get("samples"):
            found.samples[str(event.get("by", ""))] = str(event["samples"])
    found.warnings = found.warnings[-5:]
    return found


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with (path / EVENTS_NAME).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            data = file.read(_BYTES)
            if size > _BYTES:
                data = data[: data.rfind(b"\n") + 1]
                file.seek(max(size - _BYTES, len(data)))
                data += file.read(_BYTES + (1 << 16))
    except OSError:
        return
    for line in data.split(b"\n"):
        if line.startswith(b'{"event": "step"'):
            continue
        with suppress(ValueError, RecursionError):
            event = parse_json(line)
            if isinstance(event, dict):
                yield event


@dataclass(frozen=True, slots=True)
class Samples:
    """What the model wrote in one evaluation by a callback. ``steps``: of the evaluations that were kept."""

    by: str
    steps: list[int]
    step: int
    metrics: list[str]
    rows: list[dict[str, Any]]


def samples(path: Path, files: dict[str, str], step: str) -> list[Samples]:
    """Of each callback those of a step, or of the last one where it kept none of that step."""
    found = []
    for by, file in files.items():
        if rows := sample_rows(path, file):
            steps = sorted({row["step"] for row in rows})
            chosen = int(step) if step.isdecimal() and len(step) < 10 and int(step) in steps else steps[-1]
            shown = [row for row in rows if row["step"] == chosen]
            metrics = list(dict.fromkeys(name for row in shown for name in row["scores"]))
            found.append(Samples(by, steps, chosen, metrics, shown))
    return found


def checkpoints(path: Path) -> list[dict[str, Any]]:
    """Name, step, bytes and time of each whole checkpoint, the newest first."""
    found = []
    for manifest in (path / "ckpt").glob("step-*/MANIFEST.json"):
        directory = manifest.parent
        with suppress(OSError):
            size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
            step = directory.name.removeprefix("step-")
            found.append({"name": directory.name, "step": int(step) if step.isdecimal() else None, "bytes": size,
                          "time": manifest.stat().st_mtime})  # fmt: skip
    newest = Path(str(stored_object(path / "ckpt" / "latest.json").get("path", ""))).name
    for item in found:
        item["newest"] = item["name"] == newest
    return sorted(found, key=lambda item: str(item["name"]), reverse=True)


def error_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that were not taken: ``file``, ``line``, ``text``."""
    found: list[dict[str, Any]] = []
    for split in report.values():
        errors = split.get("errors") if isinstance(split, dict) else None
        for error in errors if isinstance(errors, list) else []:
            if isinstance(error, dict):
                text = ": ".join(str(error[key]) for key in ("code", "path", "message", "found") if error.get(key))
                found.append({"file": str(error.get("file", "")), "line": error.get("line"), "text": text})
    return found[:_ERRORS]
