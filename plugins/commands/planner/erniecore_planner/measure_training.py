"""Steps of a real run, timed: how many operations per second training reaches on this device. The run is an ordinary one in
a directory that is thrown away. A processor's single thread is timed by the seconds that it ran; see ``bench_operators``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from erniecore.api import UsageError, hookimpl
from erniecore.api.command import load_settings, planned_run
from erniecore.api.measuring import train
from erniecore.api.planning import PlannedRun
from erniecore_planner.estimate import Estimate, estimate
from erniecore_planner.measure_operators import clock_of
from erniecore_planner.operators import Timed, step_parts
from erniecore_planner.rates import Rate, identity, training
from erniecore_planner.step_times import load_of, measured_costs
from erniecore_planner.work import work_of

#: first steps that are not counted: memory is not there yet
WARM_UP = 3
#: what the run is made to do
OVERRIDES = ("checkpoint.final=false", "checkpoint.export=false", "log.report=false", "eval.every=0")


class Clock:
    """Listens to a run and notes how long its steps take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._started = clock, 0.0
        self.seconds: list[float] = []

    @hookimpl
    def ernie_step_start(self) -> None:
        self._started = self._clock()

    @hookimpl
    def ernie_step_end(self) -> None:
        self.seconds.append(self._clock() - self._started)


@dataclass(frozen=True, slots=True)
class Measured:
    """``rate``: median, in operations of the plan. ``seconds`` of each step; ``wall``: the same by the clock on the wall.
    ``full``: tokens of full rows per token of these. ``estimate``: what was planned before. ``timed``: the same beside what
    operators alone should have taken; None where those were not measured."""

    rate: Rate
    seconds: list[float]
    wall: list[float]
    full: float
    estimate: Estimate
    timed: Timed | None


def measure_training(file: Path | None, overrides: list[str], flags: Mapping[str, Any], steps: int) -> Measured:
    """The median rate of ``steps`` steps.

    Raises:
        UsageError: the model does not say what its layers are like. Everything that a run may raise.
    """
    with tempfile.TemporaryDirectory(prefix="ernie-bench-") as out:
        args = [*overrides, *OVERRIDES, f"run.out={out}/run", f"train.max_steps={WARM_UP + steps}", "run.resume=never"]
        loaded = load_settings(file, args, flags)
        run, _ = planned_run(loaded)
        found = estimate(run)
        if found is None:
            raise UsageError("this model does not say what its layers are like", where="--model")
        clock = Clock(clock_of(run.device))
        events = [event for event in train(loaded, [clock]) if event["event"] == "step"][WARM_UP:]
    seconds = clock.seconds[WARM_UP:]
    per_second = statistics.median(
        found.flops.total * event["tokens"] / own for event, own in zip(events, seconds, strict=True)
    )
    shape = (run.train.batch_size, run.data.max_seq_len, run.train.accumulation)
    dtype, today = training(run.train.precision), date.today().isoformat()
    rate = Rate(run.device.name, identity(run.device.describe()), dtype, per_second, shape, today)
    full = run.plan.tokens_per_step / statistics.median(event["tokens"] for event in events)
    wall = [event["seconds"] for event in events]
    return Measured(rate, seconds, wall, full, found, _timed(run, statistics.median(seconds) * full))


def _timed(run: PlannedRun, seconds: float) -> Timed | None:
    costs = measured_costs(run, os.environ)
    if costs is None or run.shape is None:
        return None
    work, names = work_of(run), run.names
    parts = step_parts(run.shape, work, load_of(run), costs)
    args = [names["model"], names["method"], names.get("adapter") or "full", f"{run.plan.parameters.total}"]
    args += [f"{run.train.batch_size}x{work.length}x{run.train.accumulation}", work.recompute]
    label = " ".join(args)
    return Timed(costs.device, costs.machine, costs.dtype, date.today().isoformat(), label, costs.day, parts, seconds)
