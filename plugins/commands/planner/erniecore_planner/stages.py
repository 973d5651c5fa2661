"""What a process of a divided run holds, by pipeline stage: the formulas of ``activations`` and ``memory`` for the layers, heads
and positions that are its own, with states as ``layout_memory`` cuts them and the buffers of messages. Pure functions.

Letters as in ``layout_memory``. Beyond it: gradients of replicas travel in messages of up to ``MESSAGE`` elements, of which
the joined and the summed one exist beside the gradients; ranks along ``context`` gather keys and values of the whole row, or
have those of a few ranks at a time in the layer at work;
ranks along ``tensor`` keep what enters matrices that are cut, once per half of a layer, and their loss is not fused; ranks along
``expert`` exchange tokens, which is workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from erniecore.api.model import DecoderShape
from erniecore.api.planning import ParallelLayout
from erniecore_planner.activations import Activations, Work, activations, loss_chunk_of, saved_names
from erniecore_planner.jobs import Job
from erniecore_planner.layout_memory import MESSAGE, idle, keys_elsewhere, parameter_counts
from erniecore_planner.layout_time import trained
from erniecore_planner.memory import CPU_HEAP, CPU_PROCESS, States, transient
from erniecore_planner.operators import cut


@dataclass(frozen=True, slots=True)
class StageHolds:
    """Bytes of one process of a pipeline stage.

    Attributes:
        stage: number. layers: of the model, by number. parameters: that it has.
        weights, reference, gradients, optimizer: of its parameters, after sharding. activations: of the micro-batches that
            are in flight at a time; ``in_flight``: how many. workspace: of the layer or the logits at work. buffers: of
            messages.
        gathered: weights of other ranks that a rollout has here for its time (stage 3), when there are neither gradients nor
            activations.
        peak_memory: most bytes at a time. process_memory: on the CPU, roughly what the process grows to.
    """

    stage: int
    layers: tuple[int, ...]
    parameters: int
    weights: int
    reference: int
    gradients: int
    optimizer: int
    activations: int
    in_flight: int
    workspace: int
    buffers: int
    gathered: int
    peak_memory: int
    process_memory: int


def layers_by_stage(split: Sequence[int], count: int, pipeline: int) -> list[list[tuple[int, int]]]:
    """(first layer, end) of the parts of each stage; part i belongs to stage i modulo ``pipeline``."""
    sizes = split or (count,)
    ends = list(accumulate(sizes))
    parts = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [parts[stage::pipeline] for stage in range(pipeline)]


def shape_of(shape: DecoderShape, parts: Sequence[tuple[int, int]], tensor: int, expert: int) -> DecoderShape:
    """The layers of a stage as one of ``tensor`` ranks has them."""
    own = [cut(shape, first, end, tensor, expert) for first, end in parts]
    return replace(own[-1], layers=tuple(layer for piece in own for layer in piece.layers))


def holds(job: Job, work: Work, chosen: ParallelLayout, parts: Sequence[tuple[int, int]], stage: int) -> StageHolds:
    """Of a process of pipeline stage ``stage``, which has these parts of the layers."""
    dense, experts, largest, tables = 0.0, 0.0, 0.0, 0.0
    for first, end in parts:
        mine = parameter_counts(job, first, end, chosen.tensor, chosen.expert)
        dense, experts, largest = dense + mine.dense, experts + mine.experts, max(largest, mine.largest)
        tables += mine.tables
    shards = chosen.sharding
    sharded = dense / shards + experts / max(1, shards // chosen.expert)
    level = chosen.sharding_stage if shards > 1 else 0
    parameters = dense + experts
    mine_trained, part_trained = trained(job, parameters), trained(job, sharded)
    weights = job.weight * (sharded if level == 3 else parameters)
    weights += mine_trained * job.element if job.adapter is not None else 0.0
    unused = sum(idle(job, first, end, chosen.tensor, chosen.expert) for first, end in parts)
    weights += job.weight * unused
    reference = job.copies * job.weight * (parameters + unused) if job.adapter is None else 0.0
    gradients = job.gradient * (part_trained if level >= 2 else mine_trained)
    optimizer = job.state(part_trained, tables / shards) if level else job.state(mine_trained, tables)
    message = min(mine_trained, float(MESSAGE)) * job.gradient if chosen.data_size > 1 else 0.0
    whole = whole_for_a_time(job, chosen, parts, largest) if level == 3 else 0
    buffers = 2 * message + whole
    micro_batches = job.rows // (chosen.data_size * job.micro)
    in_flight = min(micro_batches, chosen.pipeline - stage)
    made = in_flight_at_once(made_by(job.shape, work, chosen, parts), in_flight)
    resident = weights + reference + optimizer
    biggest = 4 * table_of(job, chosen, parts) if job.adapter is None else 0.0
    states = States(round(resident), round(gradients), round(biggest / (shards if level else 1)))
    gathered = round(job.weight * (parameters - sharded)) if level == 3 and job.generates else 0
    passing = max(
        gathered,
        transient(states, made, accumulation=micro_batches if chosen.pipeline == 1 else 2) + whole,
        round(gradients + buffers),
    )
    return StageHolds(
        stage=stage,
        layers=tuple(layer for first, end in parts for layer in range(first, end)),
        parameters=round(parameters),
        weights=round(weights),
        reference=round(reference),
        gradients=round(gradients),
        optimizer=round(optimizer),
        activations=made.saved,
        in_flight=in_flight,
        workspace=max(made.workspace, made.logits),
        buffers=round(buffers),
        gathered=gathered,
        peak_memory=round(resident) + passing,
        process_memory=process_on_cpu(round(resident), passing, whole),
    )


def process_on_cpu(resident: int, passing: int, whole: int) -> int:
    """Peak resident memory in bytes of a process: what ``passing`` has leaves holes in the heap, but for parameters that are
    ``whole`` in stage 3, which go back to the system."""
    return CPU_PROCESS + resident + whole + round(CPU_HEAP * (passing - whole))


def in_flight_at_once(made: Activations, count: int) -> Activations:
    """Activations of one micro-batch with those that are saved of ``count`` of them."""
    names = (*saved_names(), "adapter", "loss", "vision")
    return replace(made, **{name: count * getattr(made, name) for name in names})


def whole_for_a_time(job: Job, chosen: ParallelLayout, parts: Sequence[tuple[int, int]], largest: float) -> int:
    """Bytes of parameters that are whole in stage 3: layers, that at work and those ahead, or one beside embedding or head.

    ``largest``: parameters of the largest layer."""
    table = table_of(job, chosen, parts)
    return round(job.weight * max((1 + chosen.prefetch) * largest, largest + table))


def table_of(job: Job, chosen: ParallelLayout, parts: Sequence[tuple[int, int]]) -> float:
    """Parameters of the embedding or the head, where a stage has one."""
    has_one = any(first == 0 or end == len(job.shape.layers) for first, end in parts)
    return job.shape.vocab * job.shape.hidden / chosen.tensor if has_one else 0.0


def made_by(shape: DecoderShape, work: Work, chosen: ParallelLayout, parts: Sequence[tuple[int, int]]) -> Activations:
    """Activations of one micro-batch in one process."""
    tokens = work.tokens // chosen.context
    own = shape_of(shape, parts, chosen.tensor, chosen.expert)
    made = activations(own, replace(work, tokens=tokens))
    if chosen.tensor > 1:
        made = replace(made, experts=made.experts // chosen.tensor)
        made = replace(made, logits=shared_logits(own, replace(work, tokens=tokens)))
        if chosen.sequence:
            made = replace(made, residual=made.residual // chosen.tensor, loss=made.loss // chosen.tensor)
        if work.recompute != "full":
            entered = 2 * work.element * tokens * shape.hidden * len((*own.layers, *own.mtp_layers))
            made = replace(made, residual=made.residual + entered)
    if chosen.context > 1:
        ring = chosen.context_attention == "ring"
        found = [keys_elsewhere(layer, tokens, chosen.context, work.recompute, ring=ring) for layer in own.layers]
        made = replace(made, attention=made.attention + sum(stay for stay, _ in found))
        made = replace(made, workspace=made.workspace + max(passing for _, passing in found))
    if chosen.expert > 1:
        rows = max((layer.selected for layer in own.layers), default=0) * tokens
        made = replace(made, workspace=made.workspace + 2 * work.element * rows * shape.hidden)
    if all(first > 0 for first, _ in parts):
        made = replace(made, vision=0, seeing=0)
    if all(end < len(shape.layers) for _, end in parts):
        made = replace(made, loss=0, logits=0)
    return made


def shared_logits(own: DecoderShape, work: Work) -> int:
    """What a loss over a shared vocabulary needs as workspace: of a chunk its logits and two more of their size, four streams
    of learned positions, and the gradient of this rank's part of the head."""
    piece = loss_chunk_of(own.vocab, work.tokens, work.loss_chunk)
    table = 4 * own.vocab * own.hidden if work.head_trained else 0
    return 12 * piece * own.vocab + 16 * work.tokens * own.hidden + table
