"""For schedule plugins: the learning rate as a pure function of the step. No paddle."""

from erniecore.plugin import SchedulePlugin

__all__ = [
    "SchedulePlugin",
]
