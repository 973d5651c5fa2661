"""``ernie runs list``, ``watch``, ``compare``, ``stop``, ``clean`` and ``restore``: the runs in a directory, where they are now,
several side by side, the end of one, those that failed. Reads events, settings and locks; no paddle, no numpy.
``report`` comes from another plugin.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.api import UsageError, counted
from erniecore.api.command import JsonOption, new_group, note, show, show_json, show_table
from erniecore.api.runs import size_text

app = new_group("List, watch, compare, stop and clean up runs, and write their reports.")


@app.callback()
def runs() -> None:
    """List, watch, compare, stop and clean up runs, and write their reports."""


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
def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run directories, or directories of runs; runs/ if none is named."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print where they are now, and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Where runs are now, and again at each change, until all have ended or Ctrl-C: state, step, loss, speed, time left.

    A run without an end counts as going on, for it may be on another machine. --json prints a line at each change.
    """
    from erniecore_runs import watching

    places = runs or [Path("runs")]
    if not watching.rows(places):
        note(f"no runs in {', '.join(map(str, places))}")
    if once and as_json:
        show_json(watching.rows(places))
    elif once:
        show_table(watching.COLUMNS, watching.cells(watching.rows(places)))
    elif as_json:
        for rows in watching.changes(places, interval):
            show(json.dumps(rows))
    else:
        watching.show_changes(watching.changes(places, interval))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, two or more.")],
    as_json: JsonOption = False,
) -> None:
    """Runs side by side: the settings that differ, and the last value of each metric."""
    from erniecore_runs.comparing import compare

    if len(runs) < 2:
        raise UsageError("one run cannot be compared", found=str(runs[0]), fix="name two run directories or more")
    found = compare(runs)
    for text in found.notes:
        note(text)
    if as_json:
        columns = [{"name": run.name, "status": run.status, "path": str(run.directory)} for run in found.runs]
        finite = {key: [_finite(value) for value in values] for key, values in found.metrics.items()}
        show_json({"runs": columns, "settings": found.settings, "metrics": finite, "notes": found.notes})
        return
    show_table(("", *map(str, runs)), [["status", *(run.status for run in found.runs)]])
    for title, rows in (("setting", found.settings), ("metric", found.metrics)):
        show("")
        if rows:
            show_table((title, *map(str, runs)), [[key, *map(_side, values)] for key, values in rows.items()])
        else:
            show(f"no {title} {'differs' if title == 'setting' else 'was reported'}")


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


@app.command()
def clean(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="How they ended: failed (default), stopped, finished, interrupted (no end was told)."
        ),
    ] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Last event so long ago.")
    ] = 0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Move them into the trash; without it they are only listed.")
    ] = False,
) -> None:
    """Move runs into the trash, those that failed unless --state says others; `ernie runs restore` brings them back.

    A run that a process of this machine holds is never moved. Disk space is free once .web/trash is removed.
    """
    from erniecore_runs.cleaning import old_runs
    from erniecore_runs.latest import STATES
    from erniecore_runs.trash import TRASH, Trash

    wanted = state or ["failed"]
    for name in wanted:
        if name not in STATES or name == "running":
            others = ", ".join(other for other in STATES if other != "running")
            raise UsageError("runs do not end so", where="--state", found=name, expected=f"one of {others}")
    found = old_runs(directory, wanted, older_than)
    if not found:
        note(f"no such runs in {directory}")
        return
    rows = [[str(o.path), o.state, str(o.step), size_text(o.size), f"{o.days:.1f}"] for o in found]
    show_table(("run", "state", "step", "size", "days"), rows)
    if not yes:
        show(f"nothing was moved; --yes moves {counted(len(found), 'run')} into {directory / TRASH}")
        return
    trash = Trash(directory)
    for old in found:
        show(
            f"{old.path}: in the trash; `ernie runs restore {trash.put(old.path).name} --from {directory}` brings it back"
        )


@app.command()
def restore(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="In the trash; none: list it.")] = None,
    directory: Annotated[Path, typer.Option("--from", metavar="DIR", help="Where the runs are.")] = Path("runs"),
) -> None:
    """Bring runs back from the trash of `ernie runs clean` and `ernie web`, or list what is in it."""
    from erniecore_runs.trash import Trash

    trash = Trash(directory)
    for name in names or ():
        show(f"{directory / trash.restore(name)}: is back")
    if not names:
        rows = [
            [item.name, item.run, time.strftime("%Y-%m-%d %H:%M", time.localtime(item.time))] for item in trash.all()
        ]
        show_table(("name", "run", "deleted"), rows)


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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _side(value: str | float | None) -> str:
    """A cell of a comparison: six digits of a number, and a dash where a run does not have the key."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
