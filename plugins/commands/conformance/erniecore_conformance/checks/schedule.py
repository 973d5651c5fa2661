"""Checks for learning-rate schedules, over runs of several lengths."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, ensure, ensure_equal
from erniecore_conformance.subjects import Subject

#: steps after the warm-up, and those of the warm-up
RUNS = tuple(product((1, 2, 7, 100, 10_000), (0, 1, 50)))


def _factor(subject: Subject, step: int, length: int, warmup: int) -> Any:
    values = {"step": step, "length": length, "warmup": warmup}
    try:
        return subject.call("ernie_schedule_factor", config=subject.config(), **values)
    except CheckFailed:
        raise
    except Exception as error:
        raise CheckFailed(f"raised {type(error).__name__}: {error} for {values}") from error


def _steps(length: int) -> list[int]:
    """First, last and some between."""
    return sorted({0, 1, length // 3, length // 2, length - 1} & set(range(length)))


def check_schedule_stays_between_0_and_1(subject: Subject) -> None:
    """Within a run of any length the factor is a finite float from 0 to 1, and above 0 somewhere."""
    for length, warmup in RUNS:
        found = [_factor(subject, step, length, warmup) for step in _steps(length)]
        for step, value in zip(_steps(length), found, strict=True):
            good = isinstance(value, float) and math.isfinite(value) and 0 <= value <= 1
            ensure(good, f"step {step} of {length} after {warmup} steps of warm-up has the factor {value!r}")
        ensure(any(found), f"no step of {length} learns")


def check_schedule_is_pure(subject: Subject) -> None:
    """The factor of a step is the same again, asked for in another order: a run continues at any step."""
    asked = [(step, length, warmup) for length, warmup in RUNS for step in _steps(length)]
    first = [_factor(subject, *one) for one in asked]
    again = [_factor(subject, *one) for one in asked[::-1]][::-1]
    ensure_equal(again, first, "factors in another order")


def check_schedule_goes_on_after_the_end(subject: Subject) -> None:
    """A run that was made longer gets a factor from 0 to 1 for steps after its length, too."""
    for length, warmup in RUNS:
        for step in (length, length + 1, 3 * length):
            value = _factor(subject, step, length, warmup)
            good = isinstance(value, float) and 0 <= value <= 1
            ensure(good, f"step {step} of {length} has the factor {value!r}")


CHECKS = (
    Check(check_schedule_stays_between_0_and_1),
    Check(check_schedule_is_pure),
    Check(check_schedule_goes_on_after_the_end),
)
