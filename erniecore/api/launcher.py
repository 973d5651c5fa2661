"""What a launcher is written with: starting, watching and ending the ranks of a run. No paddle."""

from erniecore.engine.launch import paddle_variables
from erniecore.engine.processes.exits import read_exit
from erniecore.engine.processes.network import free_port, interface_to, node_name
from erniecore.sections import LauncherConfig
from erniecore.types.launcher import Launcher, RankExit, RankJob, RunningRanks
from erniecore.types.run import Cluster

__all__ = [
    "Cluster",
    "Launcher",
    "LauncherConfig",
    "RankExit",
    "RankJob",
    "RunningRanks",
    "free_port",
    "interface_to",
    "node_name",
    "paddle_variables",
    "read_exit",
]
