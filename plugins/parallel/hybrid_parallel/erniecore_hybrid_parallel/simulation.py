"""Executes the orders of all stages of a pipeline on paper: receives wait, sends do not, messages between two stages arrive
in the order in which they were sent. Finds deadlocks and messages that would be taken for others, and says how long a step
takes, how much of it is idle, and how many activations each stage keeps. No paddle; the clock is the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from erniecore_hybrid_parallel.schedules import Action


class ScheduleError(Exception):
    """Orders that cannot be executed, or that leave something out."""


@dataclass(frozen=True)
class Simulated:
    """One step.

    Attributes:
        seconds: until the last stage is done. busy: seconds that each stage computes.
        alive: the most forward passes of each stage whose backward pass is still to come.
        starts: (forward, micro-batch, virtual stage) -> when the pass begins.
    """

    seconds: float
    busy: tuple[float, ...]
    alive: tuple[int, ...]
    starts: Mapping[tuple[bool, int, int], float]

    @property
    def bubble(self) -> float:
        """Share of the time in which the busiest stage is idle."""
        return 1 - max(self.busy) / self.seconds


class _Stage:
    def __init__(self, order: Sequence[Action]) -> None:
        self.order, self.at, self.time, self.busy = order, 0, 0.0, 0.0
        self.open: set[tuple[int, int]] = set()
        self.closed: set[tuple[int, int]] = set()
        self.alive = 0

    def begin(self, action: Action, stage: int) -> None:
        """Book-keeping of activations; raises ``ScheduleError`` for a pass that comes twice or too early."""
        which = action.micro, action.chunk
        if action.forward and which not in self.open and which not in self.closed:
            self.open.add(which)
            self.alive = max(self.alive, len(self.open))
        elif not action.forward and which in self.open:
            self.open.remove(which)
            self.closed.add(which)
        else:
            raise ScheduleError(f"stage {stage}: {action} comes twice, or before its forward pass")


class Simulation:
    """All stages of one pipeline.

    Args:
        orders: per stage. chunks, micros: how many there are. forward, backward: seconds of these passes of each part, in
            the order of the model; a message takes ``message`` seconds.
        scale: (micro-batch, virtual stage) -> factor of its costs, for passes that skip layers.
    """

    def __init__(
        self,
        orders: Sequence[Sequence[Action]],
        chunks: int,
        micros: int,
        *,
        forward: Sequence[float],
        backward: Sequence[float],
        message: float = 0.0,
        scale: Callable[[int, int], float] = lambda micro, virtual_stage: 1.0,
    ) -> None:
        self.size, self.chunks, self.micros, self.message = len(orders), chunks, micros, message
        self.virtual_stages = self.size * chunks
        self.costs, self.scale = {True: forward, False: backward}, scale
        self.starts: dict[tuple[bool, int, int], float] = {}
        self.stages = [_Stage(order) for order in orders]
        self.sent: dict[tuple[bool, int], deque[tuple[int, int, float]]] = {}

    def run(self) -> Simulated:
        """Raises ``ScheduleError``: a deadlock, a wrong message, a pass that is missing or comes twice."""
        moved = True
        while moved:
            moved = False
            for index in range(self.size):
                while self._step(index):
                    moved = True
        self._check()
        return Simulated(
            max(stage.time for stage in self.stages),
            tuple(stage.busy for stage in self.stages),
            tuple(stage.alive for stage in self.stages),
            self.starts,
        )

    def _step(self, index: int) -> bool:
        """The next action of a stage, if what it waits for is there."""
        stage = self.stages[index]
        if stage.at == len(stage.order):
            return False
        action = stage.order[stage.at]
        virtual_stage = action.chunk * self.size + index
        direction = 1 if action.forward else -1
        start = stage.time
        if 0 <= virtual_stage - direction < self.virtual_stages:
            queue = self.sent.get((action.forward, index))
            if not queue:
                return False
            micro, to, when = queue.popleft()
            if (micro, to) != (action.micro, virtual_stage):
                raise ScheduleError(f"stage {index}: {action} would read what micro-batch {micro} sent to part {to}")
            start = max(start, when)
        stage.begin(action, index)
        cost = self.costs[action.forward][virtual_stage] * self.scale(action.micro, virtual_stage)
        self.starts[action.forward, action.micro, virtual_stage] = start
        stage.time, stage.busy, stage.at = start + cost, stage.busy + cost, stage.at + 1
        target = virtual_stage + direction
        if 0 <= target < self.virtual_stages:
            queue = self.sent.setdefault((action.forward, target % self.size), deque())
            queue.append((action.micro, target, stage.time + self.message))
        return True

    def _check(self) -> None:
        waiting = [f"stage {i} at {s.order[s.at]}" for i, s in enumerate(self.stages) if s.at < len(s.order)]
        if waiting:
            raise ScheduleError(f"nothing goes on: {', '.join(waiting[:8])}")
        for index, stage in enumerate(self.stages):
            if len(stage.closed) != self.chunks * self.micros or stage.open:
                raise ScheduleError(
                    f"stage {index}: {len(stage.closed)} of {self.chunks * self.micros} passes are done"
                )


def simulate(
    orders: Sequence[Sequence[Action]], chunks: int, micros: int, *, forward: float = 1.0, backward: float = 2.0
) -> Simulated:
    """Stages alike, each of which takes ``forward`` and ``backward`` seconds for a micro-batch through all its chunks."""
    virtual_stages = len(orders) * chunks
    return Simulation(
        orders,
        chunks,
        micros,
        forward=[forward / chunks] * virtual_stages,
        backward=[backward / chunks] * virtual_stages,
    ).run()
