"""What a model wrote in the evaluations of its run, from the files that the callbacks keep (``evaluation`` events name them)."""

from __future__ import annotations

from typing import Any, NamedTuple

from erniecore_runs.record import RunRecord
from erniecore_runs.samples import sample_rows

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
        if by not in found and (rows := sample_rows(record.directory, file)):
            step = max(row["step"] for row in rows)
            last = [row for row in rows if row["step"] == step][:_MOST]
            metrics = list(dict.fromkeys(name for row in last for name in row["scores"]))
            found[by] = Samples(by, str(file), step, metrics, last)
    return list(found.values())
