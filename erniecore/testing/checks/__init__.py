"""The table of conformance checks: kind -> checks. One module per kind, no registration by import."""

from __future__ import annotations

from erniecore.testing.checks import (
    adapter,
    callback,
    command,
    device,
    encoder,
    every,
    exporter,
    method,
    model,
    model_state,
    parallel,
    parallel_ranks,
    quantizer,
    rows,
    scorer,
    server,
    training,
)
from erniecore.testing.runner import Check

CHECKS: dict[str, tuple[Check, ...]] = {
    "every": every.CHECKS,
    "device": device.CHECKS,
    "parallel": (*parallel.CHECKS, *parallel_ranks.CHECKS),
    "model": (*model.CHECKS, *model_state.CHECKS),
    "adapter": adapter.CHECKS,
    "quantizer": quantizer.CHECKS,
    "method": (*method.CHECKS, *training.CHECKS, *encoder.CHECKS),
    "format": rows.CHECKS,
    "scorer": scorer.CHECKS,
    "exporter": exporter.CHECKS,
    "server": server.CHECKS,
    "callback": callback.CHECKS,
    "command": command.CHECKS,
}


def checks_for(kind: str) -> tuple[Check, ...]:
    """The checks of every kind, then those of ``kind``."""
    return (*CHECKS["every"], *CHECKS[kind])
