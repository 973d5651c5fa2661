"""A good schedule at toy size: a line to zero."""

from __future__ import annotations

from erniecore.api import hookimpl
from erniecore.api.schedule import SchedulePlugin


class ToySchedulePlugin(SchedulePlugin):
    """Falls in a straight line."""

    name = "toy"
    summary = "a line to zero, for the conformance kit"

    @hookimpl
    def ernie_schedule_factor(self, step: int, length: int) -> float:
        return max(0.0, 1 - step / length)


plugin = ToySchedulePlugin()
