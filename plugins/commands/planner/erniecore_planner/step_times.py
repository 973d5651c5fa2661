"""Seconds that a step of a planned run should take on this machine, by class of operator, from what ``ernie bench`` has measured
here. No paddle. The arithmetic is in ``operators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from erniecore.api.model import DecoderShape
from erniecore.api.planning import PlannedRun
from erniecore_planner.activations import Work
from erniecore_planner.cost_files import (
    costs_of_machine,
    entry_of,
    loader_path,
    make_data,
    make_serve,
    serve_path,
    timed_on,
)
from erniecore_planner.data_rates import DataRate, data_seconds, serving, starting_seconds
from erniecore_planner.jobs import active_parameters
from erniecore_planner.operators import Costs, Load, factors, step_parts
from erniecore_planner.rates import identity


@dataclass(frozen=True, slots=True)
class StepTimes:
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


def measured_costs(run: PlannedRun, environ: Mapping[str, str]) -> Costs | None:
    """Of the run's device; accelerators are described by paddle, which a plan does not import: there the newest count."""
    return costs_of_machine(environ, run.device.name, run.train.precision, machine_of(run))


def machine_of(run: PlannedRun) -> str:
    """By which measurements of this machine are found; empty: any with this device."""
    return identity(run.device.describe()) if run.device.is_host else ""


def data_rate(run: PlannedRun, environ: Mapping[str, str]) -> DataRate | None:
    """Of the method's data path, as ``ernie bench loader`` found it."""
    return entry_of(loader_path(environ), make_data, "cpu", run.names["method"], machine_of(run))


def reading_seconds(run: PlannedRun, environ: Mapping[str, str]) -> float | None:
    """Seconds until the data of a run can be trained with, if none of it is in a cache; None where it is not here or its
    path was not measured."""
    rate = data_rate(run, environ)
    files = [Path(source.path) for source in run.data.train]
    if rate is None or not files or not all(file.is_file() for file in files):
        return None
    return starting_seconds(rate, sum(file.stat().st_size for file in files))


def generation_speed(
    run: PlannedRun, shape: DecoderShape, length: int, environ: Mapping[str, str]
) -> tuple[float, float] | None:
    """Tokens per second of (prefill, decoding of one sequence) of this model on this machine; None where nothing was
    measured."""
    rate = entry_of(serve_path(environ), make_serve, run.device.name, run.train.precision, machine_of(run))
    return serving(rate, active_parameters(shape), 1, length) if rate else None


def load_of(run: PlannedRun) -> Load:
    """What a process of a run on one device does in a step."""
    plan = run.plan
    matrices = [shape for shape in (run.adapter or {}).values() if len(shape) == 2]
    return Load(
        micro_batches=run.train.accumulation,
        trained=plan.parameters.trainable,
        adapter=sum(prod(shape) for shape in matrices) if plan.parameters.adapted else None,
        updates=len(matrices) // 2,
        reference=int(run.reference),
    )


def step_times(run: PlannedRun, shape: DecoderShape, work: Work, environ: Mapping[str, str]) -> StepTimes | None:
    """None where operators were not measured on this machine (``ernie bench operators``)."""
    costs = measured_costs(run, environ)
    if costs is None:
        return None
    timed = timed_on(environ, costs)
    own = factors(timed)
    parts = {name: own[name] * seconds for name, seconds in step_parts(shape, work, load_of(run), costs).items()}
    rate = data_rate(run, environ)
    if rate is not None:
        parts["data"] = data_seconds(rate, work.tokens * run.train.accumulation)
    return StepTimes(parts, sum(parts.values()), len(timed), costs.day, costs.machine)
