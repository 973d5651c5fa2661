"""What differs between runs: their settings, as ``resolved.yaml`` has them, and the last value of each metric. No paddle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore.api.events import COUNTS
from erniecore_runs.record import RunRecord, number, opened
from erniecore_runs.settings import RESOLVED_NAME, hyperparameters

#: settings that name a run, and so differ in any two
_NAMES = ("run.name", "run.out")
#: what the end of a run adds up
_TOTALS = ("steps", "tokens", "seconds", "peak_memory")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side. The lists have one entry per run, in their order; None where a run does not have the key.

    Attributes:
        runs: the runs.
        settings: key -> values as ``resolved.yaml`` has them; only those that are not equal in all runs.
        metrics: ``train/…``: the numbers of the last step; ``eval/…``: of the last evaluation; ``total/…``: of the end.
            A value that was not finite is not-a-number.
        notes: what could not be compared.
    """

    runs: list[RunRecord]
    settings: dict[str, list[str | None]]
    metrics: dict[str, list[float | None]]
    notes: list[str]


def compare(directories: Sequence[Path]) -> Comparison:
    """Read runs and put them side by side. A run without readable settings is named in the notes and differs in none.

    Raises:
        UsageError: a directory is no run directory.
    """
    runs = [opened(directory) for directory in directories]
    settings = [_settings(directory) for directory in directories]
    notes = [f"{run.directory}: {note}" for run in runs for note in run.notes]
    notes += [
        f"{run.directory}: no readable {RESOLVED_NAME}, so its settings are not compared"
        for run, known in zip(runs, settings, strict=True)
        if not known
    ]
    rows = _side_by_side(settings)
    known_rows = {
        key: [value for value, known in zip(values, settings, strict=True) if known] for key, values in rows.items()
    }
    differing = {key: rows[key] for key, values in known_rows.items() if len(set(values)) > 1}
    return Comparison(runs, differing, _side_by_side([metrics(run) for run in runs]), notes)


def metrics(run: RunRecord) -> dict[str, float]:
    """The last value of each metric of a run, by its name in other tools (``train/loss``)."""
    last_step = next(reversed(run.steps.values()), {})
    last_eval = run.evals[-1] if run.evals else {}
    named = {"train": _metrics(last_step), "eval": _metrics(last_eval)}
    named["total"] = {key: run.end[key] for key in _TOTALS if key in run.end} if run.end else {}
    return {f"{group}/{key}": value for group, event in named.items() for key, value in _numbers(event)}


def _metrics(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in COUNTS}


def _numbers(event: Mapping[str, Any]) -> list[tuple[str, float]]:
    # strict JSON has no NaN: what was not finite is written as null
    pairs = [(key, math.nan if value is None else number(value)) for key, value in event.items()]
    return [(key, value) for key, value in pairs if value is not None]


def _settings(directory: Path) -> dict[str, str]:
    chosen, defaults = hyperparameters(directory)
    return {setting.key: setting.value for setting in (*chosen, *defaults) if setting.key not in _NAMES}


def _side_by_side(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}
