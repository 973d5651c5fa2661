"""The callback ``slow-ranks``: finds ranks that compute more slowly than the others. The time of a step says nothing, because all
wait for the slowest; what counts is a rank's time without its collectives, per micro-batch. Light; runs on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from erniecore.api import Field, Plugin, Section, hookimpl
from erniecore.api.launcher import node_name

if TYPE_CHECKING:
    from erniecore.api.callback import RunView


class SlowRanksConfig(Section):
    """When a rank counts as slow."""

    window: int = Field(20, ge=1, description="Steps between two looks; of each rank the median of so many counts.")
    factor: float = Field(
        1.5, gt=1, description="A rank is slow when its time is so many times the median of all ranks."
    )


class SlowRanks(Plugin):
    """Names slow ranks; the launcher `elastic-nodes` can exclude their machines."""

    kind = "callback"
    name = "slow-ranks"
    summary = "finds ranks that compute more slowly than the others, by their time without collectives"
    Config = SlowRanksConfig

    @hookimpl
    def ernie_step_start(self, run: RunView) -> None:
        _times(run).begin(run.ranks.waited)

    @hookimpl
    def ernie_step_end(self, run: RunView, step: int, metrics: Mapping[str, float]) -> None:
        """Every `window` steps all ranks tell each other their times; the main rank reports."""
        config: SlowRanksConfig = run.settings.callbacks[self.name]
        times = _times(run)
        times.end(metrics["seconds"], run.ranks.waited)
        if step % config.window:
            return
        said = run.ranks.all_gather_object([times.take(), node_name()])
        seconds, nodes = [row[0] for row in said], [row[1] for row in said]
        run.emit("rank_times", step=step, seconds=seconds, nodes=nodes)
        for rank in slow(seconds, config.factor):
            usual = median(seconds)
            text = f"rank {rank} on {nodes[rank]} computes a micro-batch in {seconds[rank]:.3g} s, the median is {usual:.3g} s"
            run.emit("warning", kind="slow_rank", step=step, rank=rank, node=nodes[rank], message=text)


def slow(seconds: Sequence[float], factor: float) -> list[int]:
    """The ranks whose time is more than ``factor`` times the median; of two ranks, more than that times the other's."""
    if len(seconds) == 2:
        return [rank for rank in range(2) if seconds[rank] > factor * seconds[1 - rank]]
    usual = median(seconds)
    return [rank for rank, time in enumerate(seconds) if time > factor * usual]


class Times:
    """Seconds that one rank computed, step by step.

    Args:
        micro_batches: that it has in a step.
    """

    def __init__(self, micro_batches: int) -> None:
        self._micro_batches, self._waited = micro_batches, 0.0
        self._found: list[float] = []

    def begin(self, waited: float) -> None:
        """A step begins; ``waited``: seconds in collectives so far."""
        self._waited = waited

    def end(self, seconds: float, waited: float) -> None:
        """It has taken so many seconds."""
        self._found.append((seconds - (waited - self._waited)) / self._micro_batches)

    def take(self) -> float:
        """The median since the last call, seconds per micro-batch."""
        found, self._found = median(self._found), []
        return found


#: of the runs of this process
_known: WeakKeyDictionary[RunView, Times] = WeakKeyDictionary()


def _times(run: RunView) -> Times:
    plan = run.parallel_plan
    if run not in _known:
        _known[run] = Times(plan.shares[plan.data_rank] if plan.shares else run.settings.train.accumulation)
    return _known[run]


plugin = SlowRanks()
