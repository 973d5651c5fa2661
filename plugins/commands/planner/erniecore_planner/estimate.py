"""What a run will need beyond its exact states: activations, peak memory, FLOPs, step time, KV cache. From a planned run; no
paddle. What is estimated is called so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from erniecore.api import counted
from erniecore.api.planning import Forecast, PlannedRun, count_text, seconds_text, size_text
from erniecore_planner.activations import Activations, Work, activations, cache_bytes
from erniecore_planner.divided import SplitTime, split_time, stages_of_run
from erniecore_planner.flops import Flops, step_flops
from erniecore_planner.memory import cpu_process, tensors_peak
from erniecore_planner.rates import Rate, best_rate, identity, rates_file, read_rates, training
from erniecore_planner.stages import StageHolds
from erniecore_planner.step_times import StepTimes, generation_speed, reading_seconds, step_times
from erniecore_planner.text import flops_text, shares_text
from erniecore_planner.work import states_of, work_of


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one rank.

    Attributes:
        activations: of one micro-batch, bytes by operator. sequence_length: of a row.
        peak_memory: most bytes that tensors hold at a time.
        process_memory: on ``cpu``, roughly what the process grows to; None elsewhere.
        kv_cache: bytes per sequence of ``sequence_length`` positions.
        flops: per token. step_flops: per optimizer step of full rows, this rank's share.
        checkpoints: bytes on disk of all checkpoints that are kept and of one that is being written.
        matmul_rate: of matrix products as ``ernie bench matmul`` found it; None: not measured. min_step_seconds: per step at
            that rate: no step is faster. train_rate: of whole steps as ``ernie bench train`` found it.
        step_seconds: per step; None where nothing was measured that tells it.
        operators: seconds by class of operator as ``ernie bench operators`` found them; ``step_seconds`` is then their sum.
        data_seconds: until the data is read and encoded. generation: tokens per second of (prefill, decoding of one
            sequence). Both None where they were not measured (``ernie bench loader``, ``ernie bench serve``).
        stages: of a run on several ranks, what a rank of each pipeline stage holds; ``peak_memory`` and ``process_memory`` are
            then those of the fullest. stage_times: seconds of the slowest stage; None where they were not measured.
    """

    activations: Activations
    sequence_length: int
    peak_memory: int
    process_memory: int | None
    kv_cache: int
    flops: Flops
    step_flops: float
    checkpoints: int
    matmul_rate: Rate | None
    min_step_seconds: float | None
    train_rate: Rate | None = None
    step_seconds: float | None = None
    operators: StepTimes | None = None
    data_seconds: float | None = None
    generation: tuple[float, float] | None = None
    stages: list[StageHolds] = field(default_factory=list)
    stage_times: SplitTime | None = None

    def as_json(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        found = asdict(self)
        found["activations"]["saved"], found["flops"]["total"] = self.activations.saved, self.flops.total
        return found

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) for the console."""
        memory = [line for stage in self.stages for line in self._stage(stage)] if self.stages else self._memory()
        data = [("data", f"about {seconds_text(self.data_seconds)} to read and encode")] if self.data_seconds else []
        return [
            *memory,
            ("checkpoints", f"{size_text(self.checkpoints)} on disk, the one being written included"),
            ("KV cache", self._cache()),
            ("FLOPs", f"{flops_text(self.flops.total)}FLOP per token, {flops_text(self.step_flops)}FLOP per step"),
            ("step time", self._time()),
            *data,
        ]

    def _memory(self) -> list[tuple[str, str]]:
        """Activations, workspace and peak of a run on one device."""
        acts = self.activations
        names = ("residual", "attention", "mlp", "router", "experts", "adapter", "loss", "vision")
        saved = " | ".join(f"{name} {size_text(getattr(acts, name))}" for name in names if getattr(acts, name))
        return [
            ("activations", f"{saved} = {size_text(acts.saved)}"),
            ("workspace", f"larger of logits {size_text(acts.logits)} and one layer {size_text(acts.workspace)}"),
            ("peak", f"{size_text(self.peak_memory)} allocated{self._process(self.process_memory)}"),
        ]

    def _process(self, size: int | None) -> str:
        return f"; process RSS about {size_text(size)}" if self.process_memory and size else ""

    def _stage(self, stage: StageHolds) -> list[tuple[str, str]]:
        """Of one rank of a pipeline stage."""
        parts = [("weights", stage.weights), ("reference", stage.reference), ("gradients", stage.gradients)]
        parts += [("optimizer state", stage.optimizer)]
        batches = "micro-batch" if stage.in_flight == 1 else f"{stage.in_flight} micro-batches"
        parts += [(f"activations of {batches}", stage.activations)]
        parts += [("workspace", stage.workspace), ("buffers", stage.buffers)]
        parts += [("gathered for rollouts", stage.gathered)]
        text = " | ".join(f"{name} {size_text(size)}" for name, size in parts if size)
        layers = f"layers {stage.layers[0]}-{stage.layers[-1]}"
        ends = (["embedding"] if stage.stage == 0 else []) + (["head"] if stage.stage == len(self.stages) - 1 else [])
        name = f"stage {stage.stage}" if len(self.stages) > 1 else "each rank"
        own = f"{' and '.join([layers, *ends])}, " if len(self.stages) > 1 else ""
        return [
            (name, f"{own}{count_text(stage.parameters)} parameters: {text}"),
            ("peak", f"{size_text(stage.peak_memory)} allocated{self._process(stage.process_memory)}"),
        ]

    def _cache(self) -> str:
        size = f"{size_text(self.kv_cache)} per sequence of {self.sequence_length:,} tokens"
        if self.generation is None:
            return size
        prefill, decode = self.generation
        return f"{size}; prefill about {prefill:,.0f} tokens/s, decoding {decode:,.0f} tokens/s"

    def _time(self) -> str:
        if self.stage_times is not None:
            times = self.stage_times
            parts = {**times.parts, **times.messages, "waiting for stages": times.waiting}
            return f"about {seconds_text(times.seconds)} per step of full rows, slowest rank: {shares_text(parts)}"
        if self.stages:
            return "unknown; `ernie bench operators` and `ernie bench comm --nproc N` measure this device"
        if self.operators is not None:
            found = self.operators
            runs = (
                f"calibrated by {counted(found.runs, 'run')}"
                if found.runs
                else "not calibrated; `ernie bench train` calibrates"
            )
            return (
                f"about {seconds_text(found.seconds)} per step of full rows: {shares_text(found.parts)} (operators "
                f"measured {found.day[:10]} on {found.machine}, {runs})"
            )
        if self.train_rate is not None and self.step_seconds is not None:
            where = f"{flops_text(self.train_rate.flops)}FLOP/s in training, measured {self.train_rate.day}"
            return (
                f"about {seconds_text(self.step_seconds)} per step of full rows ({where} on {self.train_rate.machine})"
            )
        if self.matmul_rate is None or self.min_step_seconds is None:
            return "unknown; `ernie bench matmul` measures this device"
        rate = self.matmul_rate
        where = f"matmul at {flops_text(rate.flops)}FLOP/s, measured {rate.day} on {rate.machine}"
        return f"no step is faster than {seconds_text(self.min_step_seconds)} ({where})"


def estimate(run: PlannedRun, environ: Mapping[str, str] | None = None) -> Estimate | None:
    """Estimates for a planned run; None where the model does not say what its layers are like."""
    shape = run.shape
    if shape is None:
        return None
    environ = os.environ if environ is None else environ
    work, train, plan = work_of(run), run.train, run.plan
    flops = flops_of(run, work)
    per_rank = work.tokens * train.accumulation * flops.total
    matmul, trained = rates_of(run, environ)
    operators = step_times(run, shape, work, environ)
    seconds = operators.seconds if operators else per_rank / trained.flops if trained else None
    stages, times = divided_run(run, work, environ)
    acts, states = activations(shape, work), states_of(run)
    peak = tensors_peak(states, acts, accumulation=train.accumulation)
    unpacked = plan.parameters.total - plan.parameters.packed  # what is packed has kernels of its own, without buffers
    largest = 4 * min(shape.vocab * shape.hidden, unpacked)
    process = cpu_process(
        states, acts, accumulation=train.accumulation, threads=run.device.threads, largest_matrix=largest
    )
    if stages:
        seconds, operators = times.seconds if times else None, None
        peak, process = max(s.peak_memory for s in stages), max(s.process_memory for s in stages)
    return Estimate(
        activations=acts,
        sequence_length=work.length,
        peak_memory=peak,
        process_memory=process if run.device.is_host else None,
        kv_cache=cache_bytes(shape, rows=1, length=work.length, element=work.element),
        flops=flops,
        step_flops=per_rank,
        checkpoints=plan.checkpoint * (plan.keep + 1),
        matmul_rate=matmul,
        min_step_seconds=per_rank / matmul.flops if matmul else None,
        train_rate=trained,
        step_seconds=seconds,
        operators=operators,
        data_seconds=reading_seconds(run, environ),
        generation=generation_speed(run, shape, work.length, environ),
        stages=stages,
        stage_times=times,
    )


def forecast(run: PlannedRun, environ: Mapping[str, str] | None = None) -> Forecast | None:
    """What the core asks for, of this rank; None where the model does not say what its layers are like."""
    found = estimate(run, environ)
    if found is None:
        return None
    if not found.stages:
        return Forecast(found.peak_memory, found.step_seconds)
    place = run.cluster.rank
    if run.layout.order or run.layout.ranks:
        from erniecore_planner.placement import place_of

        place = place_of(run.layout, place)
    stage = found.stages[place * len(found.stages) // run.cluster.world_size]
    return Forecast(stage.peak_memory, found.step_seconds)


def flops_of(run: PlannedRun, work: Work) -> Flops:
    """Per token of a run whose model says what its layers are like."""
    assert run.shape is not None
    parameters = run.plan.parameters
    return step_flops(
        run.shape,
        active=parameters.active,
        length=work.length,
        recompute=run.train.recompute,
        adapter=parameters.trainable if parameters.adapted else None,
        reference=run.reference,
    )


def divided_run(run: PlannedRun, work: Work, environ: Mapping[str, str]) -> tuple[list[StageHolds], SplitTime | None]:
    """What the stages of a run on several ranks hold, and its step; nothing for one rank."""
    if run.cluster.world_size == 1:
        return [], None
    return stages_of_run(run, work), split_time(run, work, environ)


def rates_of(run: PlannedRun, environ: Mapping[str, str]) -> tuple[Rate | None, Rate | None]:
    """The measured rates of the run's device, of products and of training. Accelerators are described by paddle, which a plan
    does not import: there the newest rate of the same kind of device counts, and its name is told."""
    device, precision = run.device, run.train.precision
    machine = identity(device.describe()) if device.is_host else ""
    rates = read_rates(rates_file(environ))
    return best_rate(rates, device.name, precision, machine), best_rate(
        rates, device.name, training(precision), machine
    )
