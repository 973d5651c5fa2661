"""What a model wrote in the evaluations of its run, from the files that the callbacks keep (``evaluation`` events name them)."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple

from erniecore_runs.record import RunRecord, number

from erniecore.api.files import parse_json, read_bytes

_LARGEST = 1 << 26
#: rows on the page
_MOST = 20


class Samples(NamedTuple):
    """Examples of the last evaluation of one callback.

    Attributes:
        by: the callback. metrics: names of the scores that a row has.
        rows: each with ``prompt``, ``completion``, ``reference`` as text, and ``scores``.
    """

    by: str
    file: str
    step: int
    metrics: list[str]
    rows: list[dict[str, Any]]


def kept_samples(record: RunRecord) -> list[Samples]:
    """Those of the last evaluation of each callback, in the order of their first events. A file that is gone is left out."""
    found: dict[str, Samples] = {}
    for event in record.evaluations:
        by, file = str(event.get("by", "")), event.get("samples")
        if isinstance(file, str) and PurePath(file).name == file and by not in found:
            rows = _rows(record, file)
            step = max((row["step"] for row in rows), default=0)
            last = [row for row in rows if row["step"] == step][:_MOST]
            if last:
                metrics = list(dict.fromkeys(name for row in last for name in row["scores"]))
                found[by] = Samples(by, file, step, metrics, last)
    return list(found.values())


def _rows(record: RunRecord, file: str) -> list[dict[str, Any]]:
    """The rows of a file of samples that are whole."""
    try:
        lines = read_bytes(record.directory / file, _LARGEST).splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            texts = {key: str(row.get(key, "")) for key in ("prompt", "completion", "reference")}
            given = row["scores"] if isinstance(row.get("scores"), dict) else {}
            values = {str(name): number(value) for name, value in given.items()}
            scores = {name: f"{value:g}" for name, value in values.items() if value is not None}
            rows.append({"step": row["step"], **texts, "scores": scores})
    return rows
