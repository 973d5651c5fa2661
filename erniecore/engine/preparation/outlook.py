"""What a run will need beyond its exact states: activations, peak memory, products, time, generation's cache. From a
prepared run; no paddle. What is estimated is called so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from erniecore import kernels
from erniecore.engine.preparation.plan import BYTES, count
from erniecore.engine.preparation.step_time import Expected, answering, expected_step, starting
from erniecore.planning.activations import Activations, Work, activations, cache_bytes
from erniecore.planning.flops import Flops, step_flops
from erniecore.planning.memory import States, cpu_process, tensors_peak
from erniecore.planning.rates import Rate, best_rate, identity, rates_file, read_rates, training
from erniecore.planning.split_stages import StageHolds
from erniecore.types import DecoderShape
from erniecore.units import size_text

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared
    from erniecore.engine.preparation.split_run import SplitTime


@dataclass(frozen=True, slots=True)
class Outlook:
    """Estimates for one rank.

    Attributes:
        activations: of one micro-batch, bytes by operator. tensors: most bytes that tensors hold at a time.
        process: on ``cpu``, roughly what the process grows to; None elsewhere.
        cache: bytes of keys and values for one answer of ``length`` positions.
        flops: per token. step_flops: per optimizer step of full rows, this rank's part.
        rate: of matrix products as ``ernie bench matmul`` found it; None: not measured. seconds: per step at that rate:
            no step is faster; None without a rate. trained, expected: rate of whole steps as ``ernie bench train`` found
            it, and seconds per step at that.
        step: seconds by class of operator as ``ernie bench operators`` found them; ``expected`` is then their sum.
        starting: seconds that the data is read for. answering: tokens per second of a prompt and of one answer; both
            None where they were not measured (``ernie bench loader``, ``ernie bench serve``).
        disk: bytes of all checkpoints that are kept and of one that is being written.
        stages: of a run on several processes, what a process of each pipeline stage holds; ``tensors`` and ``process`` are
            then those of the fullest. divided: seconds of its step; None where they were not measured.
    """

    activations: Activations
    length: int
    tensors: int
    process: int | None
    cache: int
    flops: Flops
    step_flops: float
    rate: Rate | None
    seconds: float | None
    disk: int
    stages: list[StageHolds] = field(default_factory=list)
    divided: SplitTime | None = None
    trained: Rate | None = None
    expected: float | None = None
    step: Expected | None = None
    starting: float | None = None
    answering: tuple[float, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        kept, total = self.activations.kept, self.flops.total
        found = asdict(self)
        found["activations"]["kept"], found["flops"]["total"] = kept, total
        return found

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) for the console."""
        names = ("stream", "attention", "mlp", "router", "experts", "updates", "loss")
        acts = [(name, getattr(self.activations, name)) for name in names]
        kept = " | ".join(f"{name} {size_text(size)}" for name, size in acts if size)
        moment = (
            f"logits {size_text(self.activations.logits)} or layer {size_text(self.activations.working)} for a moment"
        )
        process = f"; the process grows to roughly {size_text(self.process)}" if self.process else ""
        if self.stages:
            memory = [line for stage in self.stages for line in self._stage(stage)]
        else:
            memory = [
                ("keeps", f"{kept} = {size_text(self.activations.kept)}; {moment}"),
                ("peak", f"{size_text(self.tensors)} of tensors{process}"),
            ]
        return [
            *memory,
            ("disk", f"{size_text(self.disk)} for all checkpoints"),
            ("answers", self._answers()),
            ("work", f"{number(self.flops.total)} operations per token, {number(self.step_flops)} per step"),
            ("time", self._time()),
            *(
                [("data", f"read and encoded in about {duration(self.starting)} before the first step")]
                if self.starting
                else []
            ),
        ]

    def _stage(self, stage: StageHolds) -> list[tuple[str, str]]:
        """Of one process of a pipeline stage."""
        parts = [("weights", stage.weights), ("reference", stage.reference), ("grads", stage.gradients)]
        parts += [("optimizer", stage.optimizer), (f"activations of {stage.under_way} micro-batches", stage.kept)]
        parts += [("for a moment", stage.moment), ("messages", stage.buffers)]
        text = " | ".join(f"{name} {size_text(size)}" for name, size in parts if size)
        process = f"; the process grows to roughly {size_text(stage.process)}" if self.process else ""
        layers = f"layers {stage.layers[0]}-{stage.layers[-1]}"
        ends = (["embedding"] if stage.stage == 0 else []) + (["head"] if stage.stage == len(self.stages) - 1 else [])
        name = f"stage {stage.stage}" if len(self.stages) > 1 else "each"
        own = " and ".join([layers, *ends]) if len(self.stages) > 1 else "process"
        return [
            (name, f"{own}, {count(stage.parameters)} parameters: {text}"),
            ("peak", f"{size_text(stage.tensors)} of tensors{process}"),
        ]

    def _answers(self) -> str:
        size = f"{size_text(self.cache)} of keys and values per answer of {self.length:,} positions"
        if self.answering is None:
            return size
        prompt, answer = self.answering
        return f"{size}; about {prompt:,.0f} tokens/s of a prompt, {answer:,.0f} of an answer alone"

    def _time(self) -> str:
        if self.divided is not None:
            parts = {**self.divided.parts, **self.divided.messages, "waiting for stages": self.divided.waiting}
            shares = _shares(parts, self.divided.seconds)
            return f"about {duration(self.divided.seconds)} per step of full rows, slowest process: {shares}"
        if self.stages:
            return "unknown; `ernie bench operators` and `ernie bench comm --nproc N` measure this device"
        if self.step is not None:
            shares = _shares(self.step.parts, self.step.seconds)
            runs = f"steps of {self.step.runs} runs" if self.step.runs else "no run yet; `ernie bench train` times one"
            return (
                f"about {duration(self.step.seconds)} per step of full rows: {shares} (operators measured "
                f"{self.step.day[:10]} on {self.step.machine}, corrected by {runs})"
            )
        if self.trained is not None and self.expected is not None:
            where = f"{number(self.trained.flops)} operations/s in training, measured {self.trained.day}"
            return f"about {duration(self.expected)} per step of full rows ({where} on {self.trained.machine})"
        if self.rate is None or self.seconds is None:
            return "unknown; `ernie bench matmul` measures this device"
        where = f"{number(self.rate.flops)} operations/s, measured {self.rate.day} on {self.rate.machine}"
        return f"no step is faster than {duration(self.seconds)} ({where})"


def _shares(parts: Mapping[str, float], total: float) -> str:
    """``products 57%, attention 32%``: the larger parts, by size."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in ordered if seconds > 0.02 * total)


def outlook(ready: Prepared, environ: Mapping[str, str] | None = None) -> Outlook | None:
    """Estimates for a prepared run; None where the model does not say what its layers are like."""
    shape: DecoderShape | None = ready.host.hook.ernie_decoder_shape(architecture=ready.architecture)
    if shape is None:
        return None
    train, plan = ready.settings.train, ready.plan
    work = work_of(ready)
    made = activations(shape, work)
    states = states_of(ready)
    flops = step_flops(
        shape,
        active=plan.parameters.active,
        length=work.length,
        recompute=train.recompute,
        adapter=plan.parameters.trainable if plan.parameters.adapted else None,
        reference=ready.reference != "none",
    )
    per_rank = work.tokens * train.accumulation * flops.total
    environ = os.environ if environ is None else environ
    rate, trained = rates_of(ready, environ)
    step = expected_step(ready, shape, work, environ)
    known = step.seconds if step else per_rank / trained.flops if trained else None
    stages, divided = divided_run(ready, work, environ)
    tensors = tensors_peak(states, made, accumulation=train.accumulation)
    process = cpu_process(states, made, accumulation=train.accumulation)
    if stages:
        known, step = divided.seconds if divided else None, None
        tensors, process = max(stage.tensors for stage in stages), max(stage.process for stage in stages)
    return Outlook(
        activations=made,
        length=work.length,
        tensors=tensors,
        process=process if ready.device.name == "cpu" else None,
        cache=cache_bytes(shape, rows=1, length=work.length, element=work.element),
        flops=flops,
        step_flops=per_rank,
        rate=rate,
        seconds=per_rank / rate.flops if rate else None,
        disk=plan.checkpoint * (plan.keep + 1),
        trained=trained,
        expected=known,
        step=step,
        starting=starting(ready, environ),
        answering=answering(ready, shape, work.length, environ),
        stages=stages,
        divided=divided,
    )


def divided_run(ready: Prepared, work: Work, environ: Mapping[str, str]) -> tuple[list[StageHolds], SplitTime | None]:
    """What the stages of a run on several processes hold, and its step; nothing for one process."""
    if ready.cluster.world_size == 1:
        return [], None
    from erniecore.engine.preparation.split_run import split_time, stages_of_run

    return stages_of_run(ready, work), split_time(ready, work, environ)


def work_of(ready: Prepared) -> Work:
    """What activations depend on."""
    from erniecore.engine.preparation.prepare import adapter_shapes

    train, length = ready.settings.train, ready.settings.data.max_seq_len
    shapes = adapter_shapes(ready.host, ready.settings.adapter, ready.state_adapter.maps("pt")) or {}
    return Work(
        tokens=train.batch_size * length,
        length=length,
        element=BYTES[train.precision],
        recompute=train.recompute,
        loss_chunk=train.loss_chunk,
        head_trained=ready.settings.adapter is None,
        ranks=sum(min(s) for s in shapes.values() if len(s) == 2) // 2,
        adapted_experts=any(len(s) == 3 for s in shapes.values()),
        masks=ready.kernels.names.get("attention", kernels.REFERENCE) == kernels.REFERENCE,
        apart=ready.kernels.names.get("cross_entropy", kernels.REFERENCE) == kernels.REFERENCE,
    )


def states_of(ready: Prepared) -> States:
    """The exact part of the memory."""
    plan, adapted = ready.plan, ready.settings.adapter is not None
    sizes = [4 * prod(entry.shape) for entry in ready.state_adapter.maps("pt") if entry.trained]
    return States(
        resident=plan.memory - plan.gradients,
        gradients=plan.gradients,
        largest=0 if adapted else max(sizes, default=0),
    )


def rates_of(ready: Prepared, environ: Mapping[str, str]) -> tuple[Rate | None, Rate | None]:
    """The measured rates of the run's device, of products and of training. Accelerators are described by paddle, which a plan
    does not import: there the newest rate of the same kind of device counts, and its card is named."""
    device, precision = ready.device, ready.settings.train.precision
    machine = identity(device.describe()) if device.name == "cpu" else ""
    rates = read_rates(rates_file(environ))
    return best_rate(rates, device.name, precision, machine), best_rate(
        rates, device.name, training(precision), machine
    )


def number(value: float) -> str:
    """``1.5 T``, ``320 G``."""
    for limit, unit in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """``1.5 s``, ``3.0 min``, ``2.1 h``."""
    for limit, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms"
