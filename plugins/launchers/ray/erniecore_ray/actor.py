"""What runs on the nodes: an actor that starts one rank as a child process, and says how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping

from erniecore.api.launcher import NODE, Cluster, LocalRanks, RankExit, RankJob, free_port, node_name

#: variables by which Ray shows each actor its own accelerators; ranks of one node need to see those of all, in their order
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES")


class RankActor:
    """One rank. Its methods run side by side in threads: ``wait`` blocks until the rank has ended."""

    def __init__(self) -> None:
        self._ranks: LocalRanks | None = None

    def place(self) -> tuple[str, str, dict[str, str]]:
        """(id of the node, its address, accelerators that Ray has given to this actor by variable)."""
        import ray

        visible = {name: os.environ[name] for name in VISIBLE if os.environ.get(name)}
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), visible

    def port(self) -> int:
        """A free port of this node."""
        return free_port()

    def start(self, job: RankJob, place: Cluster, visible: Mapping[str, str]) -> str:
        """Start the rank; the name of this node. The console of rank 0 is a file, which the launcher reads."""
        name = node_name()
        if not place.rank:
            with (job.out / "logs" / "console").open("wb") as file:
                os.dup2(file.fileno(), 1)
        ranks = LocalRanks(job, name, {NODE: name, **visible})
        ranks.start([place])
        self._ranks = ranks
        return name

    def wait(self) -> RankExit:
        """Until the rank has ended."""
        assert self._ranks is not None
        (exit_,) = self._ranks.wait()
        return exit_

    def signal(self, number: int) -> None:
        """To the rank, if it still runs."""
        if self._ranks is not None:
            self._ranks.signal(number)

    def close(self) -> None:
        """Kill the rank if it still runs."""
        if self._ranks is not None:
            self._ranks.close()
