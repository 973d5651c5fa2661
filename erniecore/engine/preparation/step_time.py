"""Seconds that a step of a prepared run should take on this machine, by class of operator, from what ``ernie bench`` has
measured here. No paddle. The arithmetic is in ``erniecore.planning.operators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.planning.activations import Work
from erniecore.planning.cost_files import (
    costs_of_machine,
    entry_of,
    loader_path,
    make_data,
    make_serve,
    serve_path,
    timed_on,
)
from erniecore.planning.data_rates import DataRate, data_seconds, serving, starting_seconds
from erniecore.planning.jobs import active_parameters
from erniecore.planning.operators import Costs, Load, factors, step_parts
from erniecore.planning.rates import identity
from erniecore.types import DecoderShape

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one step of full rows.

    Attributes:
        parts: seconds by class of operator, and ``data``: of making its batches, beside which nothing runs.
        seconds: their sum. runs: number of runs whose steps corrected the operators' costs.
        day: when operators were measured. machine: where.
    """

    parts: Mapping[str, float]
    seconds: float
    runs: int
    day: str
    machine: str


def measured_costs(ready: Prepared, environ: Mapping[str, str]) -> Costs | None:
    """Of the run's device; accelerators are described by paddle, which a plan does not import: there the newest count."""
    return costs_of_machine(environ, ready.device.name, ready.settings.train.precision, machine_of(ready))


def machine_of(ready: Prepared) -> str:
    """By which measurements of this machine are found; empty: any with this device."""
    return identity(ready.device.describe()) if ready.device.name == "cpu" else ""


def data_rate(ready: Prepared, environ: Mapping[str, str]) -> DataRate | None:
    """Of the method's data path, as ``ernie bench loader`` found it."""
    return entry_of(loader_path(environ), make_data, "cpu", ready.names["method"], machine_of(ready))


def starting(ready: Prepared, environ: Mapping[str, str]) -> float | None:
    """Seconds until the data of a run can be trained with, if none of it is in a cache; None where it is not here or its
    path was not measured."""
    rate = data_rate(ready, environ)
    files = [Path(source.path) for source in ready.settings.data.train]
    if rate is None or not files or not all(file.is_file() for file in files):
        return None
    return starting_seconds(rate, sum(file.stat().st_size for file in files))


def answering(
    ready: Prepared, shape: DecoderShape, length: int, environ: Mapping[str, str]
) -> tuple[float, float] | None:
    """(tokens per second of prompts, of one answer) of this model on this machine; None where nothing was measured."""
    rate = entry_of(
        serve_path(environ), make_serve, ready.device.name, ready.settings.train.precision, machine_of(ready)
    )
    return serving(rate, active_parameters(shape), 1, length) if rate else None


def load_of(ready: Prepared) -> Load:
    """What a process of an undivided run does in a step."""
    from erniecore.engine.preparation.prepare import adapter_shapes

    plan, train = ready.plan, ready.settings.train
    shapes = adapter_shapes(ready.host, ready.settings.adapter, ready.state_adapter.maps("pt")) or {}
    matrices = [shape for shape in shapes.values() if len(shape) == 2]
    return Load(
        micro_batches=train.accumulation,
        trained=plan.parameters.trainable,
        adapter=sum(prod(shape) for shape in matrices) if plan.parameters.adapted else None,
        updates=len(matrices) // 2,
        reference=int(ready.reference != "none"),
    )


def expected_step(ready: Prepared, shape: DecoderShape, work: Work, environ: Mapping[str, str]) -> Expected | None:
    """None where operators were not measured on this machine (``ernie bench operators``)."""
    costs = measured_costs(ready, environ)
    if costs is None:
        return None
    timed = timed_on(environ, costs)
    own = factors(timed)
    parts = {name: own[name] * seconds for name, seconds in step_parts(shape, work, load_of(ready), costs).items()}
    rate = data_rate(ready, environ)
    if rate is not None:
        parts["data"] = data_seconds(rate, work.tokens * ready.settings.train.accumulation)
    return Expected(parts, sum(parts.values()), len(timed), costs.day, costs.machine)
