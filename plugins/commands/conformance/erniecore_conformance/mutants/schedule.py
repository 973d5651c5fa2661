"""Schedules with one thing wrong."""

from __future__ import annotations

from erniecore.api import hookimpl
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.schedule import ToySchedulePlugin


class Overshoots(ToySchedulePlugin):
    """Short runs begin above the peak."""

    @hookimpl
    def ernie_schedule_factor(self, step: int, length: int) -> float:
        return max(0.0, 1 - step / length) * (1.5 if length < 5 else 1.0)


#: how often :class:`Counts` was asked
_ASKED: list[int] = []


class Counts(ToySchedulePlugin):
    """Goes by how often it was asked, not by the step."""

    @hookimpl
    def ernie_schedule_factor(self, step: int, length: int) -> float:
        _ASKED.append(step)
        return 1 / len(_ASKED)


class FallsOn(ToySchedulePlugin):
    """Below zero after the end."""

    @hookimpl
    def ernie_schedule_factor(self, step: int, length: int) -> float:
        return 1 - step / length


MUTANTS = (
    mutant("schedule_stays_between_0_and_1", Overshoots),
    mutant("schedule_is_pure", Counts),
    mutant("schedule_goes_on_after_the_end", FallsOn),
)
