"""A run as its files tell it: events, data report, settings, artifacts. Reads only, and forgives.

A process that dies leaves half a line; a resumed run repeats steps. Neither may keep anyone from looking at the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from erniecore.api import UsageError, counted
from erniecore.api.files import parse_json, read_bytes, read_json
from erniecore.api.runs import EVENTS_NAME

DATA_REPORT_NAME = "data_report.json"
#: bytes of events that are read: those of some millions of steps
_MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run.

    Attributes:
        directory: the run's.
        starts: its ``run_start`` events: the first start and every resumption.
        steps: step -> the last ``step`` event with that number, in order of steps.
        evals, evaluations, checkpoints, warnings: those events in order.
        end: the ``run_end`` event, if the last start has one.
        data: data_report.json, or {}.
        notes: what could not be read.
    """

    directory: Path
    starts: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    data: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The run's own name, or that of its directory."""
        named = self.starts[-1].get("name") if self.starts else None
        return str(named or self.directory.resolve().name)

    @property
    def status(self) -> str:
        """``run_end``'s status; ``unfinished`` while there is none (it runs, or it was killed)."""
        return str(self.end.get("status", "finished")) if self.end else "unfinished"

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of ``key`` where it is a number; not-a-number and infinity included (``null`` means either)."""
        pairs = ((step, _value(event, key)) for step, event in self.steps.items())
        return [(step, value) for step, value in pairs if value is not None]

    def eval_series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of ``key`` in the evaluations."""
        pairs = ((event.get("step"), _value(event, key)) for event in self.evals)
        return [(step, value) for step, value in pairs if isinstance(step, int) and value is not None]


def number(value: object) -> float | None:
    """``value`` as a float if it is a number (``"NaN"`` and ``"inf"`` as text count), else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value.lower().strip("+-") not in ("nan", "inf", "infinity"):
        return None
    try:
        return float(value)
    except OverflowError:  # digits without end
        return math.inf


def _value(event: Mapping[str, Any], key: str) -> float | None:
    # strict JSON has no NaN: what was not finite is written as null
    return math.nan if key in event and event[key] is None else number(event.get(key))


def finite(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Only the pairs that can be drawn."""
    return [(step, value) for step, value in pairs if math.isfinite(value)]


def read_run(directory: Path) -> RunRecord:
    """Everything readable in ``directory``; what is not is in ``notes``. Raises ``OSError`` without events.jsonl."""
    raw = read_bytes(directory / EVENTS_NAME, _MOST)
    record = RunRecord(directory)
    unreadable = 0
    lines = raw.split(b"\n")
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        event = _parse(line)
        if event is not None:
            record = _add(record, event)
        elif index == len(lines) - 1:
            record.notes.append(f"the last line of {EVENTS_NAME} is cut off: the run was interrupted or is writing it")
        else:
            unreadable += 1
    if unreadable:
        record.notes.append(f"{EVENTS_NAME}: unreadable and left out: {counted(unreadable, 'line')}")
    record.data.update(_read_data(directory, record.notes))
    ordered = sorted(record.steps.items())
    record.steps.clear()
    record.steps.update(ordered)
    return record


def opened(directory: Path) -> RunRecord:
    """The run in ``directory``. Raises ``UsageError`` when this is no run directory."""
    try:
        return read_run(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise not_a_run(directory) from error


def not_a_run(directory: Path) -> UsageError:
    """The error for a directory without events."""
    return UsageError(
        "this is not a run directory",
        where=str(directory),
        expected=f"a directory with {EVENTS_NAME}",
        next="ernie runs list",
    )


def find_runs(directory: Path) -> list[Path]:
    """Run directories: ``directory`` itself, or those inside it, by the time of their last event.

    Raises:
        UsageError: no such directory.
    """
    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), fix="name the directory that holds your runs")
    if (directory / EVENTS_NAME).is_file():
        return [directory]
    events = [path for path in directory.glob(f"*/{EVENTS_NAME}") if path.is_file()]
    return [path.parent for path in sorted(events, key=lambda path: (path.stat().st_mtime, path.parent.name))]


def newest_run(directory: Path) -> Path:
    """The run with the latest event. Raises ``UsageError`` when there is none."""
    runs = find_runs(directory) if directory.is_dir() else []
    if not runs:
        raise UsageError("there is no run here", where=str(directory), fix="name a run directory")
    return runs[-1]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = parse_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _add(record: RunRecord, event: dict[str, Any]) -> RunRecord:
    kind = str(event.get("event"))
    lists = {
        "eval": record.evals,
        "evaluation": record.evaluations,
        "checkpoint": record.checkpoints,
        "warning": record.warnings,
    }
    if kind in lists:
        lists[kind].append(event)
    elif kind == "step" and isinstance(event.get("step"), int):
        record.steps[event["step"]] = event
    elif kind == "run_start":
        record.starts.append(event)
        return _with_end(record, None)
    elif kind == "run_end":
        return _with_end(record, event)
    return record


def _with_end(record: RunRecord, end: dict[str, Any] | None) -> RunRecord:
    return replace(record, end=end)


def _read_data(directory: Path, notes: list[str]) -> dict[str, Any]:
    path = directory / DATA_REPORT_NAME
    if not path.is_file():
        return {}
    try:
        data = read_json(path)
    except (OSError, ValueError):
        notes.append(f"{DATA_REPORT_NAME} is unreadable")
        return {}
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """rows = kept + truncated + dropped of one set of data."""

    name: str
    rows: int
    kept: int
    truncated: int
    dropped: int


def row_statistics(data: Mapping[str, Any], name: str = "all", depth: int = 3) -> list[RowStatistics]:
    """Every set of data in data_report.json that has counts, in order."""
    rows = []
    if all(key in data for key in ("rows", "kept")):
        rows.append(RowStatistics(name, *(_count(data.get(key)) for key in ("rows", "kept", "truncated", "dropped"))))
    if depth:
        for key, value in data.items():
            if isinstance(value, Mapping) and key not in ("kept", "truncated", "dropped"):
                rows += row_statistics(value, str(key), depth - 1)
    return rows


def _count(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(_count(item) for item in value.values())
    if isinstance(value, list):
        return len(value)
    found = number(value) or 0.0
    return int(found) if math.isfinite(found) else 0
