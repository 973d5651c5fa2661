"""``ernie runs report``: the report of any run directory, also of a run that is still going or that crashed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api.command import JsonOption, note, show, show_json


def report(
    directory: Annotated[Path | None, typer.Argument(help="A run directory; default: the newest in runs/.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write report.html and loss.png of a run."""
    from erniecore_runs.record import newest_run, read_run

    from erniecore_report import summary_text, write_report

    chosen = directory or newest_run(Path("runs"))
    written = write_report(chosen)
    if as_json:
        show_json({"paths": [str(path) for path in written.paths], "notes": written.notes})
        return
    show(summary_text(read_run(chosen)), "", *(str(path) for path in written.paths), indent=4)
    for text in written.notes:
        note(f"note: {text}")
