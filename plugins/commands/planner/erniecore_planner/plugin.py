"""The planner as a forecaster: what a run needs beyond its exact states, told to every run that is planned. Light."""

from __future__ import annotations

from erniecore.api import Plugin, hookimpl
from erniecore.api.planning import Forecast, PlannedRun


class PlannerPlugin(Plugin):
    """Estimates from shapes, and times from what ``ernie bench`` has measured."""

    kind = "forecaster"
    name = "planner"
    summary = "peak memory from shapes; step time from what `ernie bench` has measured on this machine"

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        from erniecore_planner.estimate import forecast

        return forecast(run)


plugin = PlannerPlugin()
