"""What a run comes to: the figures at the head of the page, and the same as plain text for a console.

Formatting only; the facts come from ``events.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from erniecore_runs.latest import duration
from erniecore_runs.record import RunRecord, finite, number, row_statistics

from erniecore.api import counted
from erniecore.api.events import COUNTS
from erniecore.api.runs import warning_text
from erniecore_report.chart import compact

_MIB = 1024.0**2
#: keys under which a step says how much memory is in use, bytes
MEMORY_KEYS = ("peak_memory", "memory", "memory_bytes")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name and a note."""

    name: str
    value: str
    note: str = ""


def memory_series(record: RunRecord) -> list[tuple[int, float]]:
    """(step, MiB) in use."""
    for key in MEMORY_KEYS:
        if pairs := record.series(key):
            return [(step, value / _MIB) for step, value in pairs]
    return []


def figures(record: RunRecord) -> list[Figure]:
    """The head figures; those that are not known are left out."""
    end = record.end or {}
    result = _loss(record) + _eval(record)
    total = record.starts[-1].get("total_steps") if record.starts else None
    if record.steps:
        note = f"of {total:,} planned" if isinstance(total, int) else ""
        result.append(Figure("steps", f"{next(reversed(record.steps)):,}", note))
    tokens = number(end.get("tokens")) or _sum(record, "tokens")
    if tokens:
        result.append(Figure("tokens seen", compact(tokens)))
    rates = sorted(value for _, value in finite(record.series("tokens_per_s")))
    if rates:
        result.append(Figure("tokens/s", compact(rates[len(rates) // 2]), "median"))
    seconds = number(end.get("seconds")) or _sum(record, "seconds")
    if seconds:
        result.append(Figure("time", duration(seconds), "since the last resume" if len(record.starts) > 1 else ""))
    result += _planned(end) + _rows(record)
    memory = finite(memory_series(record))
    if memory:
        result.append(Figure("memory", f"{compact(max(value for _, value in memory))} MiB", "peak"))
    return result


def _planned(end: Mapping[str, Any]) -> list[Figure]:
    """What the plan said of the step and of the tensors, beside what they were."""
    found, steps = [], number(end.get("steps"))
    seconds, planned = number(end.get("seconds")), number(end.get("planned_seconds"))
    if seconds and planned and steps:
        found.append(Figure("step", duration(seconds / steps), f"mean; planned {duration(planned)}"))
    allocated, expected = number(end.get("tensor_memory")), number(end.get("planned_memory"))
    if allocated and expected:
        found.append(
            Figure("peak allocated", f"{compact(allocated / _MIB)} MiB", f"estimated {compact(expected / _MIB)} MiB")
        )
    return found


def _rows(record: RunRecord) -> list[Figure]:
    """How many of the rows to train on were kept."""
    found = row_statistics(record.data)
    row = next((row for row in found if row.name == "train"), next(iter(found), None))
    if row is None:
        return []
    lost = [f"{count:,} {name}" for name, count in (("truncated", row.truncated), ("dropped", row.dropped)) if count]
    return [Figure("rows kept", f"{row.kept:,}", ", ".join([f"of {row.rows:,}", *lost]))]


def _loss(record: RunRecord) -> list[Figure]:
    losses = finite(record.series("loss"))
    if not losses:
        return []
    first, last = losses[0][1], losses[-1][1]
    return [Figure("loss", compact(last), f"from {compact(first)} at step {losses[0][0]}")]


def _eval(record: RunRecord) -> list[Figure]:
    evals = finite(record.eval_series("loss"))
    if not evals:
        return []
    step, best = min(evals, key=lambda pair: pair[1])
    return [Figure("evaluation loss", compact(evals[-1][1]), f"best {compact(best)} at step {step}")]


def _sum(record: RunRecord, key: str) -> float:
    return sum(value for _, value in finite(record.series(key)))


def eval_table(record: RunRecord) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the evaluations, the last thirty."""
    keys: list[str] = []
    for event in record.evals:
        keys += [k for k in event if k not in COUNTS and k not in keys and number(event[k]) is not None]
    rows = []
    for event in record.evals[-30:]:
        values = [number(event.get(key)) for key in keys]
        rows.append([str(event.get("step", "")), *("" if v is None else compact(v) for v in values)])
    return ["step", *keys], rows


def loss_table(record: RunRecord, rows: int = 10) -> list[tuple[int, float, float | None]]:
    """(step, loss, gradient norm) at evenly spaced steps, the first and the last among them."""
    steps = list(record.steps)
    if not steps:
        return []
    count = min(rows, len(steps))
    chosen = sorted({steps[round(i * (len(steps) - 1) / max(count - 1, 1))] for i in range(count)})
    table = []
    for step in chosen:
        event = record.steps[step]
        loss = number(event.get("loss"))
        table.append((step, float("nan") if loss is None else loss, number(event.get("grad_norm"))))
    return table


def summary_text(record: RunRecord) -> str:
    """The run in a few plain lines: figures, loss table, data, warnings."""
    lines = [f"{record.name}: {record.status}"]
    for figure in figures(record):
        lines.append(f"  {figure.name:<16} {figure.value}" + (f"  ({figure.note})" if figure.note else ""))
    table = loss_table(record)
    if table:
        lines += ["", f"  {'step':>8}  {'loss':>9}  {'grad norm':>9}"]
        for step, loss, norm in table:
            lines.append(f"  {step:>8}  {compact(loss):>9}  {'' if norm is None else compact(norm):>9}".rstrip())
    for row in row_statistics(record.data):
        lines.append(
            f"  data {row.name}: {counted(row.rows, 'row', ',')} = {row.kept:,} kept + {row.truncated:,} truncated "
            f"+ {row.dropped:,} dropped"
        )
    lines += [f"  warning: {warning_text(event)}" for event in record.warnings[-5:]]
    lines += [f"  note: {note}" for note in record.notes]
    return "\n".join(lines)
