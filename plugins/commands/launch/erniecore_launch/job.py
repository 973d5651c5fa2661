"""What a job of any scheduler is made of: the command that each start repeats, how many ranks and nodes it needs, and how long
it may take. The run itself is ``ernie run`` with the same arguments: whatever ends a job, its next start resumes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import ConfigError, UsageError
from erniecore.api.launcher import sent_along
from erniecore.api.settings import FLAG_KINDS, resolved_text, values

if TYPE_CHECKING:
    from erniecore.api.command import Chosen, LoadedSettings

#: seconds before a time limit in which the ranks save and end
GRACE = 300
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Job:
    """A run as a job.

    Attributes:
        name: of the job. arguments: of ``ernie run``, without the launcher's. directory: where they are valid.
        limit: further arguments, which end each start in time. settings: resolved, as a file of ``ernie run``.
        paths: absolute ones among the settings, by key.
        out: the run directory, absolute, on a file system that all nodes share.
        ranks: of the run, on all ``nodes`` together. minutes: of one start; 0: no limit.
    """

    name: str
    arguments: tuple[str, ...]
    limit: tuple[str, ...]
    directory: Path
    settings: str
    paths: Mapping[str, str]
    out: Path
    ranks: int
    nodes: int
    minutes: float

    @property
    def ranks_per_node(self) -> int:
        """Every node has as many."""
        return self.ranks // self.nodes


def job_of(loaded: LoadedSettings, chosen: Chosen, args: Sequence[str], nodes: int, time: str) -> Job:
    """The job of a run.

    Raises:
        ConfigError: the run directory has no name, which every start must find again, or the nodes cannot share the ranks.
        UsageError: ``time`` is none.
    """
    settings = loaded.settings
    if not settings.run.out:
        raise ConfigError.at(
            "run.out", "not set, but every start of a job must find the same run directory", fix="--out DIR"
        )
    ranks = int(loaded.host.hook.ernie_count_processes(config=settings.parallel))
    if ranks % nodes:
        raise ConfigError.at("launcher.nodes", f"{nodes} nodes cannot share {ranks} ranks equally")
    minutes = _minutes(time) if time else 0.0
    limited = minutes and not settings.run.max_minutes
    limit = (f"run.max_minutes={max(minutes - GRACE / 60, minutes / 2):g}",) if limited else ()
    out = Path(settings.run.out).absolute()
    return Job(
        out.name,
        (*args, *_flags(chosen)),
        limit,
        Path.cwd(),
        resolved_text(loaded, {}),
        dict(_paths(loaded)),
        out,
        ranks,
        nodes,
        minutes,
    )


def _paths(loaded: LoadedSettings) -> Iterator[tuple[str, str]]:
    """The settings that are absolute paths here, or where the run will write; files with plugins."""
    for file in loaded.plugin_files:
        yield "plugins", str(Path(file.path).absolute())
    for path, value in values(loaded.settings):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and os.path.isabs(text) and (path == ("run", "out") or os.path.exists(text)):
                yield ".".join(path), text


def _flags(chosen: Mapping[str, object]) -> list[str]:
    """The flags that choose plugins, data and the run directory, as they are written."""
    names = {kind.name: str(kind.flag) for kind in FLAG_KINDS}
    arguments: list[str] = []
    for name, value in chosen.items():
        if value is None or name == "launcher":
            continue
        values = value if isinstance(value, list) else [value]
        arguments += [names.get(name, f"--{name}"), *map(str, values)] if values else []
    return arguments


def _minutes(text: str) -> float:
    """Minutes of a time limit as sbatch reads it: MINUTES, MINUTES:SECONDS, H:M:S, DAYS-HOURS, DAYS-H:M and DAYS-H:M:S."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise UsageError(
            "not a time limit", where="--time", found=text, expected="90, 12:00:00 or 1-12 (a day and twelve hours)"
        )
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def variables() -> dict[str, str]:
    """The variables of this shell that settings are read from; secrets are not among them."""
    return sent_along(os.environ, ("ERNIE_",))
