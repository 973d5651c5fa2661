"""For forecasters and parallel strategies: a run before it starts, and the layouts that a strategy supports. Light."""

from erniecore_system.units import count_text, seconds_text, size_text

from erniecore.kernels import REFERENCE
from erniecore.types.layouts import LayoutSpace, ParallelLayout
from erniecore.types.planned_run import PlannedRun
from erniecore.types.planning import BYTES, Forecast, OptimizerState, Parameters, Plan

__all__ = [
    "BYTES",
    "REFERENCE",
    "Forecast",
    "LayoutSpace",
    "OptimizerState",
    "ParallelLayout",
    "Parameters",
    "Plan",
    "PlannedRun",
    "count_text",
    "seconds_text",
    "size_text",
]
