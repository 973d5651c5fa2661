"""Steps of a real run, timed: how many operations per second training reaches on this device. The run is an ordinary one in
a directory that is thrown away. A processor's single thread is timed by the seconds that it ran; see ``bench_operators``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.planning.operators import Timed
from erniecore.planning.rates import Rate, identity, training
from erniecore.plugin import hookimpl

if TYPE_CHECKING:
    from erniecore.engine.preparation.outlook import Outlook
    from erniecore.engine.preparation.prepare import Prepared

#: first steps that are not counted: memory is not there yet
WARM_UP = 3
#: what the run is made to do
WORDS = ("checkpoint.final=false", "checkpoint.export=false", "log.report=false", "eval.every=0")


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
    ``full``: tokens of full rows per token of these. ``outlook``: what was planned before. ``timed``: the same beside what
    operators alone should have taken; None where those were not measured."""

    rate: Rate
    seconds: list[float]
    wall: list[float]
    full: float
    outlook: Outlook
    timed: Timed | None


def measure_training(file: Path | None, overrides: list[str], flags: Mapping[str, Any], steps: int) -> Measured:
    """The median rate of ``steps`` steps.

    Raises:
        UsageError: the model does not say what its layers are like. Everything that a run may raise.
    """
    from erniecore.config import compose
    from erniecore.engine import entry
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.errors import UsageError

    with tempfile.TemporaryDirectory(prefix="ernie-bench-") as out:
        words = [*overrides, *WORDS, f"run.out={out}/run", f"train.max_steps={WARM_UP + steps}", "run.resume=never"]
        loaded = compose.load(file, words, flags)
        _, outlook = entry.outlook_loaded(loaded)
        if outlook is None:
            raise UsageError("this model does not say what its layers are like", where="--model")
        ready = prepare(loaded)
        alone = getattr(ready.device, "threads", 0) == 1
        clock = Clock(time.process_time if alone else time.perf_counter)
        result = entry.run_loaded(loaded, console="none", listeners=[clock])
        events = [event for event in result.events if event["event"] == "step"][WARM_UP:]
    seconds = clock.seconds[WARM_UP:]
    per_second = statistics.median(
        outlook.flops.total * event["tokens"] / own for event, own in zip(events, seconds, strict=True)
    )
    train = ready.settings.train
    shape = (train.batch_size, ready.settings.data.max_seq_len, train.accumulation)
    machine = identity(ready.device.describe())
    rate = Rate(ready.device.name, machine, training(train.precision), per_second, shape, date.today().isoformat())
    full = ready.plan.tokens_per_step / statistics.median(event["tokens"] for event in events)
    wall = [event["seconds"] for event in events]
    return Measured(rate, seconds, wall, full, outlook, _timed(ready, statistics.median(seconds) * full))


def _timed(ready: Prepared, seconds: float) -> Timed | None:
    from erniecore.engine.preparation.outlook import work_of
    from erniecore.engine.preparation.step_time import load_of, measured_costs
    from erniecore.planning.operators import step_parts

    costs = measured_costs(ready, os.environ)
    shape = ready.host.hook.ernie_decoder_shape(architecture=ready.architecture)
    if costs is None or shape is None:
        return None
    work, names, train = work_of(ready), ready.names, ready.settings.train
    parts = step_parts(shape, work, load_of(ready), costs)
    words = [names["model"], names["method"], names.get("adapter") or "full", f"{ready.plan.parameters.total}"]
    words += [f"{train.batch_size}x{work.length}x{train.accumulation}", work.recompute]
    label = " ".join(words)
    return Timed(costs.device, costs.machine, costs.dtype, date.today().isoformat(), label, costs.day, parts, seconds)
