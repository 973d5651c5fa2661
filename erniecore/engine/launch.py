"""Before paddle: which processes take part, and the environment that the device wants. This module imports nothing
heavy, so it can run first; ``Device.environment()`` is the only source of variables that the core ever writes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import NamedTuple

from erniecore import kernels, registry
from erniecore.errors import EnvironmentFault
from erniecore.host import assemble
from erniecore.types.run import Cluster, Device

#: asks a process for its stacks; answered even while it is within a call of C++
STACKS = signal.SIGUSR2


class Family(NamedTuple):
    """The variables that one kind of launcher sets. ``shown_by``: its launcher is at work when this one is there."""

    shown_by: str
    rank: str
    world: str
    local: tuple[str, ...]
    nodes: str


#: in the order in which they are asked: Paddle's launcher and ours, torchrun and its likes, srun
FAMILIES = (
    Family(
        "PADDLE_TRAINERS_NUM",
        "PADDLE_TRAINER_ID",
        "PADDLE_TRAINERS_NUM",
        ("PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
        "PADDLE_NNODES",
    ),
    Family("WORLD_SIZE", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), "GROUP_WORLD_SIZE"),
    # SLURM_PROCID is 0 in a batch script too; a step's number of tasks is there under srun only
    Family("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), "SLURM_STEP_NUM_NODES"),
)


def read_cluster(environ: Mapping[str, str]) -> Cluster:
    """The processes of this run, from the variables of Paddle's launcher, of torchrun or of Slurm; one without them.

    Raises:
        EnvironmentFault: a variable is not a number, the rank is outside of the world, or nothing says where several
            processes meet.
    """
    family = next((f for f in FAMILIES if environ.get(f.shown_by)), FAMILIES[0])
    rank, world = _number(environ, family.rank, 0), _number(environ, family.world, 1)
    if not 0 <= rank < world:
        raise EnvironmentFault("rank outside of the world", where=family.rank, found=f"{rank} of {world}")
    local = next((name for name in family.local if environ.get(name)), family.local[0])
    return Cluster(
        rank=rank,
        world_size=world,
        local_rank=_number(environ, local, rank),
        num_nodes=_number(environ, family.nodes, 1),
        master=_master(environ) if world > 1 else "",
    )


def _master(environ: Mapping[str, str]) -> str:
    """``host:port`` of rank 0's store."""
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    named = environ.get("PADDLE_MASTER") or environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")[0]
    if named:
        return named.removeprefix("tcp://")
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    if nodes:  # like node[03-07,12],other1: the first host, and a port that follows from the job
        first = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
        assert first is not None
        return f"{first[1]}{first[2] or ''}:{20000 + _number(environ, 'SLURM_JOB_ID', 0) % 20000}"
    raise EnvironmentFault(
        "several processes, but nothing says where they meet",
        where="PADDLE_MASTER",
        expected="host:port of the first process, in PADDLE_MASTER, or in MASTER_ADDR and MASTER_PORT",
    )


def paddle_variables(cluster: Cluster) -> dict[str, str]:
    """What ``paddle.distributed`` reads, for any launcher; nothing for one process."""
    if cluster.world_size == 1:
        return {}
    host, _, port = cluster.master.rpartition(":")
    # one name per rank; only their number and order matter, the ranks meet at the master's store
    endpoints = [f"{host}:{(int(port) + 1 + rank) % 65536}" for rank in range(cluster.world_size)]
    return {
        "PADDLE_TRAINER_ID": str(cluster.rank),
        "PADDLE_TRAINERS_NUM": str(cluster.world_size),
        "PADDLE_LOCAL_RANK": str(cluster.local_rank),
        "PADDLE_NNODES": str(cluster.num_nodes),
        "PADDLE_MASTER": cluster.master,
        "PADDLE_CURRENT_ENDPOINT": endpoints[cluster.rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
    }


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


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of the environment has ``value`` within the block, here and in the processes that are started there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def default_device(name: str, cluster: Cluster | None = None) -> Device:
    """The device of the plugin ``name`` with its default settings, not open yet; ``cluster``: this process, else alone.

    Raises:
        DeviceUnavailable: it is not here.
    """
    plugin = registry.load("device", name)
    host = assemble({"device": plugin})
    device: Device = host.hook.ernie_open_device(config=plugin.Config(), cluster=cluster or Cluster())
    return device


def use_kernels(choice: kernels.Choice, warnings: list[str]) -> None:
    """Load the chosen kernels; appends a warning for each that cannot be loaded. Called after paddle is imported."""
    from erniecore_ops.parallel import num_workers

    warnings += kernels.use(choice, num_workers)
