"""What a model wrote in the evaluations of its run, from a file that a callback keeps (``evaluation`` events name it)."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from erniecore.api.files import parse_json, read_bytes
from erniecore_runs.record import number

_LARGEST = 1 << 26


def sample_rows(run: Path, file: object) -> list[dict[str, Any]]:
    """The rows of a file of samples in a run directory that are whole: ``step``, ``prompt``, ``completion``, ``reference`` as
    text, and ``scores`` (name -> number as text). None where ``file`` is no name of a file in it, or the file is gone."""
    if not isinstance(file, str) or PurePath(file).name != file:
        return []
    try:
        lines = read_bytes(run / file, _LARGEST).splitlines()
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
