"""``ernie runs watch``: where runs are now, as rows, and again whenever a row changes. On a terminal the table stays in its
place; anywhere else each change is a table of its own.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from erniecore.api.command import show, show_table
from erniecore.api.files import printable
from erniecore.api.runs import size_text
from erniecore_runs.latest import duration, facts, state_now
from erniecore_runs.record import find_runs
from erniecore_runs.stopping import locked_inodes

COLUMNS = ("run", "state", "step", "loss", "tokens/s", "left", "memory")
#: states that nothing follows without a new start
_ENDED = frozenset({"finished", "stopped", "failed"})


def rows(places: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each run directory among ``places`` and for each in a directory among them, with the keys of
    :func:`erniecore_runs.latest.facts` and ``path``. Numbers that are not finite are None.

    Raises:
        UsageError: no such directory.
    """
    paths = list(dict.fromkeys(run for place in places for run in find_runs(place)))
    locked = locked_inodes()
    return [_row(path, locked) for path in paths]


def changes(places: Sequence[Path], interval: float) -> Iterator[list[dict[str, Any]]]:
    """The rows, and again whenever they are others, until all runs have ended; they are looked at every ``interval`` seconds."""
    before: list[dict[str, Any]] | None = None
    while True:
        now = rows(places)
        if now != before:
            yield now
            before = now
        if all(row["state"] in _ENDED for row in now):
            return
        time.sleep(interval)


def cells(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as the columns of :data:`COLUMNS`."""
    return [
        [
            row["path"],
            row["state"],
            _steps(row["step"], row["total"]),
            "" if row["loss"] is None else f"{row['loss']:.4f}",
            "" if row["rate"] is None else f"{row['rate']:,.0f}",
            "" if row["eta"] is None else duration(row["eta"]),
            "" if row["memory"] is None else size_text(row["memory"]),
        ]
        for row in found
    ]


def show_changes(changed: Iterable[list[dict[str, Any]]]) -> None:
    """Print the tables, on a terminal each in the place of the one before."""
    if not sys.stdout.isatty():
        for count, found in enumerate(changed):
            if count:
                show("")
            show_table(COLUMNS, cells(found))
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for found in changed:
            live.update(_table(found), refresh=True)


def _table(found: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for line in cells(found):
        table.add_row(*(Text(printable(cell)) for cell in line))
    return table


def _row(path: Path, locked: frozenset[int]) -> dict[str, Any]:
    told = facts(path)
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in told.items()}
    return {**finite, "state": state_now(path, told["state"], locked), "path": str(path)}


def _steps(step: int | None, total: int | None) -> str:
    return "" if step is None else f"{step:,}" if total is None else f"{step:,}/{total:,}"
