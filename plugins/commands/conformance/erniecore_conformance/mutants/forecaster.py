"""Forecasters with one thing wrong."""

from __future__ import annotations

from itertools import count

from erniecore.api import hookimpl
from erniecore.api.planning import Forecast, PlannedRun
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.forecaster import ToyForecasterPlugin

_calls = count(1)


class NegativeMemory(ToyForecasterPlugin):
    """A difference with the wrong sign."""

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        return Forecast(peak_memory=-run.plan.memory - run.train.batch_size // 100)


class EndlessSteps(ToyForecasterPlugin):
    """A rate of zero."""

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        return Forecast(step_seconds=float("inf"))


class Forgetful(ToyForecasterPlugin):
    """Another number each time."""

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        return Forecast(peak_memory=run.plan.memory + next(_calls))


class Inverted(ToyForecasterPlugin):
    """Divides by the batch instead of multiplying."""

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        return Forecast(peak_memory=run.plan.memory // run.train.batch_size)


class NeedsAShape(ToyForecasterPlugin):
    """Every model is thought to say its shape."""

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        assert run.shape is not None
        return Forecast(peak_memory=run.plan.memory + run.shape.hidden)


MUTANTS = (
    mutant("forecaster_gives_positive_numbers", NegativeMemory),
    mutant("forecaster_gives_positive_numbers", EndlessSteps),
    mutant("forecaster_is_pure", Forgetful),
    mutant("forecaster_memory_grows_with_the_batch", Inverted),
    mutant("forecaster_passes_over_unknown_models", NeedsAShape),
)
