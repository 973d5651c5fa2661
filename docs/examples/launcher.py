"""The processes of this machine, with a lower priority."""

from erniecore.api import Plugin, hookimpl
from erniecore.api.launcher import Launcher, LocalConfig, LocalRanks, RankJob, clusters, free_port


class NiceLauncher(Launcher):
    """Sets a variable that the ranks read; ``LocalRanks`` starts, watches and ends them."""

    def __init__(self, config: LocalConfig) -> None:
        self.ranks_per_node, self.restarts = config.nproc, config.restarts

    def start(self, job: RankJob) -> LocalRanks:
        ranks = LocalRanks(job, variables={"NICE": "10"})
        ranks.start(clusters(job.ranks_per_node, f"127.0.0.1:{free_port()}"))
        return ranks


class NicePlugin(Plugin):
    """Opens the launcher of a run."""

    kind, name, summary, Config = "launcher", "nice", "processes of this machine with the variable NICE", LocalConfig

    @hookimpl
    def ernie_open_launcher(self, config: LocalConfig) -> Launcher:
        return NiceLauncher(config)


plugin = NicePlugin()
