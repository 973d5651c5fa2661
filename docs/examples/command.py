"""``ernie losses RUN``: the training losses of a run as a table."""

import json
from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import UsageError
from erniecore.api.command import JsonOption, show_json, show_table


def command(run: Annotated[Path, typer.Argument(help="Run directory.")], as_json: JsonOption = False) -> None:
    """Print the loss of every step of a run."""
    file = run / "events.jsonl"
    if not file.is_file():
        raise UsageError("not a run directory", where=str(run), fix="name a directory that `ernie run` has written")
    events = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    rows = [(event["step"], event["loss"]) for event in events if event["event"] == "step"]
    if as_json:
        show_json(dict(rows))
    else:
        show_table(("step", "loss"), [(str(step), f"{loss:.4f}") for step, loss in rows])
