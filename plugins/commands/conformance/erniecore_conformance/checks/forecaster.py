"""Checks for forecasters, over a small run that is described and not built."""

from __future__ import annotations

import math

from erniecore.api.planning import Forecast
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.forecaster import toy_run


def _forecast(subject: Subject, batch_size: int = 2) -> Forecast:
    found: Forecast | None = subject.call("ernie_forecast", run=toy_run(batch_size))
    return found or Forecast()


def check_forecaster_gives_positive_numbers(subject: Subject) -> None:
    """The answer is a ``Forecast`` or None; what is known is positive and finite: bytes an int, seconds a float."""
    found = subject.call("ernie_forecast", run=toy_run())
    ensure(found is None or isinstance(found, Forecast), f"the answer is {found!r}, neither a Forecast nor None")
    peak, seconds = (found.peak_memory, found.step_seconds) if found else (None, None)
    ensure(peak is None or (isinstance(peak, int) and peak > 0), f"peak_memory is {peak!r}, not a positive int")
    known = seconds is None or (isinstance(seconds, float) and math.isfinite(seconds) and seconds > 0)
    ensure(known, f"step_seconds is {seconds!r}, not a positive, finite float")


def check_forecaster_is_pure(subject: Subject) -> None:
    """The same run gets the same forecast three times."""
    first, *again = (_forecast(subject) for _ in range(3))
    for found in again:
        ensure_equal(found, first, "forecast of the same run")


def check_forecaster_memory_grows_with_the_batch(subject: Subject) -> None:
    """A run with eight times the samples in a micro-batch needs no less memory."""
    small, large = (_forecast(subject, batch_size).peak_memory for batch_size in (2, 16))
    if small is None or large is None:
        raise NotApplicable("it does not forecast the memory of this run")
    ensure(large >= small, f"{large} bytes with 16 samples in a micro-batch, {small} with 2")


def check_forecaster_passes_over_unknown_models(subject: Subject) -> None:
    """A model that does not say its shape gets None or a forecast; nothing is raised."""
    found = subject.call("ernie_forecast", run=toy_run(shape=None))
    ensure(found is None or isinstance(found, Forecast), f"the answer is {found!r}, neither a Forecast nor None")


CHECKS = (
    Check(check_forecaster_gives_positive_numbers),
    Check(check_forecaster_is_pure),
    Check(check_forecaster_memory_grows_with_the_batch),
    Check(check_forecaster_passes_over_unknown_models),
)
