"""Hooks of forecasters. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.types.planned_run import PlannedRun
    from erniecore.types.planning import Forecast


class ForecasterHooks:
    """Every installed forecaster, by name; the first answer counts. Called once per run and rank, when it is planned."""

    @hookspec(firstresult=True)
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        """Peak memory and step time of this rank, or None where nothing can be said. No paddle. What it raises ends no run:
        the run goes on without a forecast, and warns.

        Example::

            @hookimpl
            def ernie_forecast(self, run):
                return Forecast(peak_memory=3 * run.plan.memory)
        """
