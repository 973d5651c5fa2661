"""The ranks of a run as actors in one placement group of a Ray cluster. The run directory is on a file system that all nodes
share; each actor starts its rank as a child process. An actor that Ray loses, alone or with its node, is a rank that was killed.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from erniecore.api import EnvironmentFault
from erniecore.api.launcher import (
    GRACE,
    Cluster,
    Launcher,
    Limits,
    RankExit,
    RankJob,
    RunningRanks,
    read_exit,
    sent_along,
)
from erniecore_ray.actor import RankActor
from erniecore_ray.cluster import join

if TYPE_CHECKING:
    from erniecore_ray.config import RayConfig

#: seconds between two looks at the actors
_PAUSE = 0.1
#: variables of this shell that the ranks need: the nodes have those of their own shells. Settings, threads, collectives
_PASSED = ("ERNIE", "FLAGS_", "OMP_", "GLOO_", "NCCL_", "BKCL_", "HCCL_")


class RayLauncher(Launcher):
    """A launcher that is a driver of a Ray cluster: one placement group for each start of the run."""

    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self.ranks_per_node, self.restarts = config.nproc, config.restarts

    def open(self, note: Callable[[str], None]) -> None:
        """Join the cluster. Raises ``EnvironmentFault`` where there is none, and without Ray."""
        ray = join(self.config.address, f"launcher.address={self.config.address}", "the launcher ray")
        alive = [node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]
        note(f"Ray {ray.__version__} on {len(alive)} node(s): {', '.join(alive)}")

    def start(self, job: RankJob) -> RayRanks:
        """Start the ranks. Raises ``EnvironmentFault``: the cluster has no room, or not equally many ranks on each node."""
        ranks = RayRanks(job, self.config)
        try:
            ranks.start()
        except BaseException:
            ranks.close()
            raise
        return ranks

    def close(self) -> None:
        """End this driver's part of the cluster: actors that are left, and their places."""
        import ray

        ray.shutdown()


class RayRanks(RunningRanks):
    """The actors of one start."""

    def __init__(self, job: RankJob, config: RayConfig) -> None:
        self.job = replace(job, environment={**sent_along(os.environ, _PASSED), **job.environment})
        self.config, self.count = config, job.ranks_per_node
        self.actors: list[Any] = []
        self.names: list[str] = []
        self._group: Any = None
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._console: IO[bytes] | None = None

    def start(self) -> None:
        """Ask for the places, and start one rank in each; ranks of one node follow each other."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": self.config.cpus, **self.config.resources}
        self._group = placement_group([bundle] * self.count, strategy=self.config.strategy)
        if not self._group.wait(self.config.wait):
            free = {name: amount for name, amount in ray.available_resources().items() if ":" not in name}
            raise EnvironmentFault(
                f"Ray had no room for the ranks within {self.config.wait:g} s", where="launcher.wait",
                found=f"free: {free}", expected=f"{self.count} x {bundle} ({self.config.strategy})", code="ERN-E022",
                fix="add nodes, or ask for less with launcher.cpus, launcher.resources or parallel",
            )  # fmt: skip
        for number in range(self.count):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            others = {name: amount for name, amount in self.config.resources.items() if name != "GPU"}
            actor = ray.remote(RankActor).options(
                num_cpus=self.config.cpus, num_gpus=self.config.resources.get("GPU", 0), resources=others,
                max_concurrency=4, max_restarts=0, scheduling_strategy=strategy,
            )  # fmt: skip
            self.actors.append(actor.remote())
        self._begin(ray.get([actor.place.remote() for actor in self.actors]))

    def _begin(self, found: Sequence[tuple[str, str, dict[str, str]]]) -> None:
        import ray

        nodes = list(dict.fromkeys(node for node, _, _ in found))
        order = sorted(range(self.count), key=lambda n: nodes.index(found[n][0]))
        here = [sum(place[0] == node for place in found) for node in nodes]
        if len(set(here)) > 1:
            raise EnvironmentFault(
                "the nodes would not have equally many ranks", where="launcher.strategy", found=f"{here} ranks",
                fix="launcher.strategy=STRICT_SPREAD for one rank on each node, STRICT_PACK for all on one",
            )  # fmt: skip
        self.actors = [self.actors[n] for n in order]
        places = [found[n] for n in order]
        master = f"{places[0][1]}:{ray.get(self.actors[0].port.remote())}"
        each = self.count // len(nodes)
        starts = [
            actor.start.remote(
                self.job, Cluster(rank=n, world_size=self.count, local_rank=n % each, num_nodes=len(nodes), master=master),
                visible([p[2] for p in places if p[0] == places[n][0]]),
            )
            for n, actor in enumerate(self.actors)
        ]  # fmt: skip
        self.names = ray.get(starts)
        self._console = (self.job.out / "logs" / "console").open("rb")

    def wait(self) -> Sequence[RankExit]:
        """Watch the actors until all ranks have ended."""
        import ray

        waiting = {actor.wait.remote(): n for n, actor in enumerate(self.actors)}
        exits: dict[int, RankExit] = {}
        limits, asked = Limits(), set[int]()
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=_PAUSE)
            for reference in ready:
                number = waiting.pop(reference)
                exits[number] = self._exit(number, reference, number in asked)
                if exits[number].status or number == 0:
                    limits.begin(failed=bool(exits[number].status))
            due = limits.due()
            if due is not None:
                asked |= set(waiting.values())
                self._signals.put(due)
            self._pass_on(waiting.values())
        return [exits[n] for n in sorted(exits)]

    def _exit(self, number: int, reference: Any, stopped: bool) -> RankExit:
        import ray

        try:
            found: RankExit = ray.get(reference)
            return (
                found
                if not stopped
                else read_exit(self.job.out, number, found.status, found.time, stopped=True, node=found.node)
            )
        except ray.exceptions.RayError:  # the actor is gone, and its rank with it
            now = time.time()
            return read_exit(self.job.out, number, -int(signal.SIGKILL), now, stopped=stopped, node=self.names[number])

    def _pass_on(self, alive: Sequence[int] | Any) -> None:
        """Signals to the ranks, and what rank 0 has printed to our console."""
        while not self._signals.empty():
            number = self._signals.get()
            for rank in alive:
                self.actors[rank].signal.remote(number)
        if self._console is not None and (text := self._console.read()):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()

    def signal(self, number: int) -> None:
        """Told to the actors by :meth:`wait` at its next look."""
        self._signals.put(number)

    def close(self) -> None:
        """Kill what still runs, and give the places back."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if self._console is not None:
            self._pass_on(())
            self._console.close()
        closing = [actor.close.remote() for actor in self.actors]
        ray.wait(closing, num_returns=len(closing), timeout=GRACE) if closing else None
        for actor in self.actors:
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)


def visible(given: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The accelerators that the ranks of one node see, all of them in the same order: those of the first rank first."""
    found: dict[str, list[str]] = {}
    for variables in given:
        for name, text in variables.items():
            found.setdefault(name, []).extend(device for device in text.split(",") if device)
    return {name: ",".join(dict.fromkeys(devices)) for name, devices in found.items()}
