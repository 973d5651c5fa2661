"""``ernie runs``: what was trained here, and reports of it. Reads run directories; no paddle, no numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption
from erniecore.errors import UsageError

app = new_group("List runs and write their reports.")


@app.command("list")
def list_(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"), as_json: JsonOption = False
) -> None:
    """Runs in a directory, the newest last: status, steps, last loss."""
    rows = [describe(path) for path in find(directory)]
    if as_json:
        render.show_json(rows)
        return
    if not rows:
        render.note(f"no runs in {directory}")
        return
    columns = ("name", "status", "steps", "loss", "path")
    render.show_table(columns, [[_cell(row[c]) for c in columns] for row in rows])


@app.command()
def report(
    directory: Annotated[Path | None, typer.Argument(help="A run directory; default: the newest in runs/.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write report.html (and loss.png where matplotlib is installed), also for a run that still goes or crashed."""
    from erniecore.builtin.report import read_run, summary_text, write_report

    chosen = directory or newest(Path("runs"))
    written = write_report(chosen)
    if as_json:
        render.show_json({"paths": [str(path) for path in written.paths], "notes": written.notes})
        return
    render.show(summary_text(read_run(chosen)), "", *(str(path) for path in written.paths))
    for note in written.notes:
        render.note(f"note: {note}")


def find(directory: Path) -> list[Path]:
    """Run directories: ``directory`` itself, or those inside it, by the time of their last event.

    Raises:
        UsageError: no such directory.
    """
    from erniecore.engine.preparation.rundir import EVENTS_NAME

    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory), fix="name the directory that holds your runs")
    if (directory / EVENTS_NAME).is_file():
        return [directory]
    events = [path for path in directory.glob(f"*/{EVENTS_NAME}") if path.is_file()]
    return [path.parent for path in sorted(events, key=lambda path: (path.stat().st_mtime, path.parent.name))]


def newest(directory: Path) -> Path:
    """The run with the latest event. Raises ``UsageError`` when there is none."""
    runs = find(directory) if directory.is_dir() else []
    if not runs:
        raise UsageError("there is no run here", where=str(directory), fix="name a run directory")
    return runs[-1]


def describe(path: Path) -> dict[str, Any]:
    """One row of the list."""
    from erniecore.builtin.report.events import read_run

    record = read_run(path)
    losses = record.series("loss")
    return {
        "name": record.name,
        "status": record.status,
        "steps": next(reversed(record.steps), 0),
        "loss": losses[-1][1] if losses else None,
        "starts": len(record.starts),
        "path": str(path),
    }


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
