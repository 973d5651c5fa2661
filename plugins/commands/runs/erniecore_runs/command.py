"""``ernie runs list`` and ``stop``: the runs in a directory, and the end of one. Reads events and locks; no paddle, no numpy.
``report`` comes from another plugin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.api import counted
from erniecore.api.command import JsonOption, new_group, note, show, show_json, show_table

app = new_group("List and stop runs, and write their reports.")


@app.callback()
def runs() -> None:
    """List and stop runs, and write their reports."""


@app.command("list")
def list_(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"), as_json: JsonOption = False
) -> None:
    """Runs in a directory, the newest last: status, steps, last loss."""
    from erniecore_runs.record import find_runs

    rows = [describe(path) for path in find_runs(directory)]
    if as_json:
        show_json(rows)
        return
    if not rows:
        note(f"no runs in {directory}")
        return
    columns = ("name", "status", "steps", "loss", "path")
    show_table(columns, [[_cell(row[c]) for c in columns] for row in rows])


@app.command()
def stop(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that is going on.")],
    now: Annotated[
        bool, typer.Option("--now", help="End its processes on this machine at once; the current steps are lost.")
    ] = False,
) -> None:
    """Stop a run: it finishes its step, saves its state and exits with code 75. The same command resumes it."""
    from erniecore_runs.stopping import ask_to_stop, kill

    if not now:
        ask_to_stop(run)
        show(f"{run}: asked to stop; it finishes its step, saves and exits with code 75")
        return
    show(f"{run}: ended {counted(len(kill(run)), 'process')}; the same command resumes from the newest checkpoint")


def describe(path: Path) -> dict[str, Any]:
    """One row of the list."""
    from erniecore_runs.record import read_run

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
