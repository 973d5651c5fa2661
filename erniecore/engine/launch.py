"""Before paddle: which processes take part, and the environment that the device wants. This module imports nothing
heavy, so it can run first; ``Device.environment()`` is the only source of variables that the core ever writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from erniecore.errors import EnvironmentFault
from erniecore.types import Cluster


def read_cluster(environ: Mapping[str, str]) -> Cluster:
    """The processes of this run, from the variables that ``paddle.distributed.launch`` sets; one without them.

    Raises:
        EnvironmentFault: a variable is not a number, or the rank is outside of the world.
    """
    rank, world = _number(environ, "PADDLE_TRAINER_ID", 0), _number(environ, "PADDLE_TRAINERS_NUM", 1)
    if not 0 <= rank < world:
        raise EnvironmentFault("rank outside of the world", where="PADDLE_TRAINER_ID", found=f"{rank} of {world}")
    return Cluster(
        rank=rank,
        world_size=world,
        local_rank=_number(environ, "PADDLE_LOCAL_RANK", _number(environ, "PADDLE_RANK_IN_NODE", rank)),
        num_nodes=_number(environ, "PADDLE_NNODES", 1),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not text.isdigit():
        raise EnvironmentFault("not a number", where=name, found=repr(text))
    return int(text) if text else default


def apply_environment(
    wanted: Mapping[str, str], environ: MutableMapping[str, str] | None = None, *, paddle_imported: bool | None = None
) -> list[str]:
    """Set what the device wants; returns what could not be done, one warning each.

    A value that the user has set stays, and is reported when it differs. When paddle has been imported already (a
    notebook, a test), missing values come too late: they are not set and are reported.
    """
    environ = os.environ if environ is None else environ
    late = "paddle" in sys.modules if paddle_imported is None else paddle_imported
    warnings = []
    for name, value in sorted(wanted.items()):
        current = environ.get(name)
        if current == value:
            continue
        if current is not None:
            warnings.append(f"{name}={current} is set; the device would use {value}")
        elif late:
            warnings.append(f"paddle was imported before {name}={value} could be set; expect slower operators")
        else:
            environ[name] = value
    return warnings
