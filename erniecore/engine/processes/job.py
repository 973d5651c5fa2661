"""What the ranks of a run are told, and the job that a launcher starts them with. No paddle."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.types.launcher import RankJob

if TYPE_CHECKING:
    from erniecore.config.compose import Request
    from erniecore.types.planned_run import PlannedRun

#: variable that holds the request to a rank, as JSON
REQUEST = "ERNIECORE_REQUEST"


@dataclass(frozen=True)
class Launch:
    """What the ranks of a run are told.

    Attributes:
        request: what to load. out: the run directory. ranks_per_node: on every node.
        name: of the run. console: how it is shown, by rank 0.
    """

    request: Request
    out: Path
    ranks_per_node: int
    name: str
    console: str

    def resuming(self) -> Launch:
        """The same from the newest checkpoint on, whatever the first start was to do."""
        return replace(self, request=self.request._replace(flags={**self.request.flags, "resume": "auto"}))

    def job(self) -> RankJob:
        """What a launcher starts: ``python -m erniecore.engine.worker`` with this as its request."""
        file, overrides, flags, command = self.request
        request: Mapping[str, Any] = {
            "file": None if file is None else str(file),
            "overrides": list(overrides),
            "flags": dict(flags),
            "command": list(command),
            "console": self.console,
            "name": self.name,
            "out": str(self.out),
        }
        argv = (sys.executable, "-m", "erniecore.engine.worker")
        files = {name: os.environ[name] for name in ("ERNIE_PLUGIN_FILES",) if name in os.environ}
        return RankJob(argv, {REQUEST: json.dumps(request), **files}, self.out, self.ranks_per_node)


def with_overrides(job: RankJob, overrides: Sequence[str], *, resume: bool) -> RankJob:
    """The same job with further settings, ``section.key=value``, which come after its own; ``resume``: from the newest
    checkpoint on, whatever the first start was to do. For launchers that change the layout between two starts."""
    request = json.loads(job.environment[REQUEST])
    request["overrides"] = [*request["overrides"], *overrides]
    if resume:
        request["flags"] = {**request["flags"], "resume": "auto"}
    return replace(job, environment={**job.environment, REQUEST: json.dumps(request)})


def planned_job(job: RankJob, processes: int) -> PlannedRun:
    """The run of a job as its settings describe it on so many processes. No paddle. Raises ``ConfigError``."""
    from erniecore.config.compose import load
    from erniecore.engine.preparation.forecast import describe_run
    from erniecore.engine.preparation.prepare import prepare

    request = json.loads(job.environment[REQUEST])
    file = None if request["file"] is None else Path(request["file"])
    loaded = load(file, request["overrides"], request["flags"], os.environ, command=request["command"])
    return describe_run(prepare(loaded, processes=processes, console="none", name=request["name"]))
