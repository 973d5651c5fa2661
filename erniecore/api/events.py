"""For whoever reads the events of a run: the fields of each, and which of them are metrics. Imports neither Paddle nor numpy."""

from erniecore.types.events import (
    COUNTS,
    EVENTS,
    OPEN,
    Begin,
    Checkpoint,
    EarlyStop,
    Eval,
    Evaluated,
    Event,
    Export,
    RunEnd,
    RunStart,
    Step,
    Warned,
    metrics,
)

__all__ = [
    "COUNTS",
    "EVENTS",
    "OPEN",
    "Begin",
    "Checkpoint",
    "EarlyStop",
    "Eval",
    "Evaluated",
    "Event",
    "Export",
    "RunEnd",
    "RunStart",
    "Step",
    "Warned",
    "metrics",
]
