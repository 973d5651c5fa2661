"""Events of a run as VisualDL records. One writer per run directory; nothing here knows how events are made.

VisualDL shows the newest file of a directory only, so a run that continues writes into ``from-step-N`` beside
the first part: the board shows both parts as two runs whose curves join.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from erniecore_curves import measured
from visualdl import LogWriter  # noqa: TID253

from erniecore.api import EnvironmentFault

if TYPE_CHECKING:
    from erniecore.api.callback import RunView
    from erniecore_visualdl.plugin import Config

#: run -> its open writer, and how often steps are logged
_OPEN: WeakKeyDictionary[RunView, tuple[LogWriter, int]] = WeakKeyDictionary()


def log_directory(run: RunView, config: Config) -> Path:
    """Where this part of the run is logged."""
    base = run.out / config.directory
    return base / f"from-step-{run.step:08d}" if run.step else base


def start(run: RunView, config: Config) -> None:
    """Open the writer and log the settings as text; raises ``EnvironmentFault`` when the directory cannot be written."""
    directory = log_directory(run, config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(StringIO()):  # visualdl prints text, which would break a run's JSON lines
            writer = LogWriter(logdir=str(directory), flush_secs=5)
    except OSError as error:
        raise EnvironmentFault(
            "cannot write the VisualDL log",
            where=str(directory),
            found=str(error.strerror),
            fix="check the permissions",
        ) from error
    _OPEN[run] = (writer, config.every)
    settings = run.settings
    text = settings.model_dump_json(indent=2)
    writer.add_text(tag="settings", text_string=text, step=run.step)


def record(run: RunView, event: Mapping[str, Any]) -> None:
    """Log the numbers of a ``step`` event as ``train/*`` and of an ``eval`` event as ``eval/*``; finite ones only."""
    if run not in _OPEN:
        return
    writer, every = _OPEN[run]
    for name, value in measured(event, every).items():
        writer.add_scalar(
            tag=name.replace("%", ""), value=value, step=int(event["step"])
        )  # VisualDL refuses '%' in tags


def end(run: RunView) -> None:
    """Close the writer, if it was opened."""
    writer, _ = _OPEN.pop(run, (None, 0))
    if writer is not None:
        writer.close()
