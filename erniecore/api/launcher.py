"""For launcher plugins: start, watch and end the ranks of a run. Imports no Paddle."""

from erniecore_system.lifeline import follow as follow_parent
from erniecore_system.lifeline import variables as parent_variables

from erniecore.builtin.local_launcher.config import LocalConfig
from erniecore.builtin.local_launcher.launcher import FINISH, GRACE, LocalRanks, clusters
from erniecore.engine.launch import paddle_variables
from erniecore.engine.processes.exits import read_exit
from erniecore.engine.processes.network import NODE, free_port, node_name
from erniecore.sections import LauncherConfig
from erniecore.types.launcher import Launcher, RankExit, RankJob, RunningRanks
from erniecore.types.run import Cluster

__all__ = [
    "FINISH",
    "GRACE",
    "NODE",
    "Cluster",
    "Launcher",
    "LauncherConfig",
    "LocalConfig",
    "LocalRanks",
    "RankExit",
    "RankJob",
    "RunningRanks",
    "clusters",
    "follow_parent",
    "free_port",
    "node_name",
    "paddle_variables",
    "parent_variables",
    "read_exit",
]
