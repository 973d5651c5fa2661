"""Hooks of learning-rate schedules. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section


class ScheduleHooks:
    """One provider: the schedule that ``train.schedule`` names. Warm-up, ``train.learning_rate`` and ``train.min_lr`` are the
    engine's: the rate is ``min_lr + (learning_rate - min_lr) * factor``. No paddle."""

    @hookspec(firstresult=True)
    def ernie_schedule_factor(self, config: Section, step: int, length: int, warmup: int) -> float:
        """What is left of the rate above ``train.min_lr``, from 0 to 1, as a pure function: a run that continues asks for the
        steps that are left. Once per optimizer step after the warm-up, on every rank.

        ``step`` counts from 0 at the first step after the warm-up, ``length`` is the number of these steps (at least 1),
        ``warmup`` that of the warm-up. A run that was made longer may ask for ``step >= length``.

        Example::

            @hookimpl
            def ernie_schedule_factor(self, config, step, length):
                return max(0.0, 1 - step / length) ** config.power
        """
