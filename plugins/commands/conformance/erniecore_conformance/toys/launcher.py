"""A good launcher at toy size: processes of this machine, ended when one fails."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from erniecore.api import Plugin, hookimpl
from erniecore.api.launcher import (
    Cluster,
    Launcher,
    LauncherConfig,
    RankExit,
    RankJob,
    RunningRanks,
    free_port,
    paddle_variables,
    parent_variables,
    read_exit,
)


class ToyLauncher(Launcher):
    """Starts all ranks as local processes."""

    def __init__(self, config: LauncherConfig) -> None:
        self.ranks_per_node, self.restarts = config.nproc, config.restarts

    def start(self, job: RankJob) -> RunningRanks:
        """Start all ranks of the job."""
        port, count = free_port(), job.ranks_per_node
        processes = []
        for rank in range(count):
            place = Cluster(rank=rank, world_size=count, local_rank=rank, master=f"127.0.0.1:{port}")
            environ = {**os.environ, **job.environment, **paddle_variables(place), **parent_variables()}
            output = None if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(job.argv, env=environ, stdin=subprocess.DEVNULL, stdout=output))
        return ToyRanks(job, processes)


class ToyRanks(RunningRanks):
    """The processes of one start."""

    def __init__(self, job: RankJob, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.job, self.processes = job, list(processes)

    def wait(self) -> Sequence[RankExit]:
        """Wait for all; once one has failed, end the others."""
        ended: dict[int, float] = {}
        stopped: set[int] = set()
        while len(ended) < len(self.processes):
            for rank, process in enumerate(self.processes):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = time.time()
                    if process.returncode and not stopped:
                        others = [n for n, other in enumerate(self.processes) if other.poll() is None]
                        stopped.update(others)
                        for n in others:
                            self.processes[n].terminate()
            time.sleep(0.02)
        return [
            read_exit(self.job.out, rank, process.returncode, ended[rank], stopped=rank in stopped)
            for rank, process in enumerate(self.processes)
        ]

    def signal(self, number: int) -> None:
        """To all that run."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class ToyLauncherPlugin(Plugin):
    """Processes of this machine."""

    kind = "launcher"
    name = "toy"
    summary = "processes of this machine, for the conformance kit"
    Config = LauncherConfig

    @hookimpl
    def ernie_open_launcher(self, config: LauncherConfig) -> Launcher:
        return ToyLauncher(config)


plugin = ToyLauncherPlugin()
