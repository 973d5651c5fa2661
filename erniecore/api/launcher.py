"""For launcher plugins: start, watch and end the ranks of a run. Imports no Paddle."""

from erniecore_system.lifeline import follow as follow_parent
from erniecore_system.lifeline import variables as parent_variables

from erniecore.builtin.local_launcher.config import LocalConfig
from erniecore.builtin.local_launcher.launcher import LocalRanks, clusters
from erniecore.builtin.local_launcher.limits import GRACE, Limits
from erniecore.engine.launch import paddle_variables
from erniecore.engine.processes.exits import read_exit
from erniecore.engine.processes.job import planned_job, with_overrides
from erniecore.engine.processes.network import NODE, free_port, node_name, sent_along
from erniecore.engine.processes.restarts import TRANSIENT, await_ranks, newest
from erniecore.sections import LauncherConfig
from erniecore.types.launcher import Launcher, RankExit, RankJob, RunningRanks
from erniecore.types.run import Cluster

__all__ = [
    "GRACE",
    "NODE",
    "TRANSIENT",
    "Cluster",
    "Launcher",
    "LauncherConfig",
    "Limits",
    "LocalConfig",
    "LocalRanks",
    "RankExit",
    "RankJob",
    "RunningRanks",
    "await_ranks",
    "clusters",
    "follow_parent",
    "free_port",
    "newest",
    "node_name",
    "paddle_variables",
    "parent_variables",
    "planned_job",
    "read_exit",
    "sent_along",
    "with_overrides",
]
