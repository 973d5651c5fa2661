"""Running, loading and exporting from Python; the command line calls the same functions. Importing this module is light:
paddle comes in after the device has set its environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded
    from erniecore.engine.plan import Plan
    from erniecore.engine.prepare import Prepared
    from erniecore.engine.stop import StopRequest


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes:
        out: the run directory. metrics: of the last step and, as ``eval/…``, of the last evaluation.
    """

    out: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    first_event: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of this session, read from ``events.jsonl``."""
        with (self.out / "events.jsonl").open("rb") as file:
            file.seek(self.first_event)
            return [json.loads(line) for line in file.read().splitlines() if line.startswith(b"{")]


def run(file: str | Path | None = None, overrides: Sequence[str] = (), *, console: str = "auto") -> RunResult:
    """Train as ``ernie run FILE section.key=value …`` does.

    Args:
        file: YAML file of the run; ``None``: everything from ``overrides``.
        overrides: ``section.key=value``.
        console: ``auto``, ``lines``, ``live``, ``json`` or ``none``.

    Raises:
        ErnieError: with ``exit_code``, as the command line would end; ``Preempted`` after SIGTERM or SIGINT.
    """
    import os

    from erniecore.config.compose import load

    loaded = load(None if file is None else Path(file), overrides, {}, os.environ)
    return run_loaded(loaded, console=console)


def plan_loaded(loaded: Loaded) -> Plan:
    """The plan of a run, without starting it (``--dry-run``); no paddle."""
    from erniecore.engine.prepare import prepare

    return prepare(loaded).plan


def run_loaded(loaded: Loaded, *, console: str = "auto") -> RunResult:
    """Train with settings that are already loaded; see :func:`run`."""
    from erniecore.engine import prepare, rundir
    from erniecore.engine.stop import StopRequest

    ready = prepare.prepare(loaded, console=console)
    stop = StopRequest(ready.out / "control" / "stop")
    with rundir.opened(ready.out, ready.cluster.rank), stop.listening():
        prepare.choose_start(ready)
        prepare.open_device(ready)
        return _train(ready, stop)


def _train(ready: Prepared, stop: StopRequest) -> RunResult:
    """The part that needs paddle."""
    from erniecore.engine import finish, loop, rundir, session

    first_event = rundir.events_size(ready.out)
    current = session.build(ready, stop)
    with finish.closing(current):
        session.announce(current)
        loop.train(current)
        finish.complete(current)
    return RunResult(ready.out, current.last_metrics, first_event)
