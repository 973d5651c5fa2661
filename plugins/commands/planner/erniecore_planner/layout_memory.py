"""Bytes on the fullest accelerator of each pipeline stage of a layout: weights, gradients, optimizer state, activations of the
micro-batches in flight, logits, buffers of collectives, and what an allocator loses.

Letters as in ``activations``; t, c, p, s, e: ranks along tensor, context, pipeline, sharding, expert.

* dense weights are cut by t, experts by e t; stage 3 of sharding cuts both once more, optimizer state from stage 1 on,
  gradients from stage 2 on. Ranks that hold the same experts are s / e of the sharding ranks, at least one. In stage 3 the
  layer at work is whole, and the layers whose parameters are gathered ahead; another one is counted for messages.
* with `sequence` the residual stream between matrices is cut by t too; a layer gathers it while it runs.
* tower and joint are whole on every rank of the first stage.
* a stage i of p holds the activations of min(m, p - i) micro-batches (one forward, one backward; Narayanan et al., 2019,
  arXiv:1806.03377). Each has T / c tokens; heads, widths and logits are cut by t.
* ranks along `context` keep keys and values of the whole row where they gather them, and of ``RING`` ranks' positions, in the
  layer at work alone, where they go around.
* experts get up to ``IMBALANCE`` times their even share of tokens where several ranks hold them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from erniecore.api.model import LayerShape
from erniecore.api.planning import ParallelLayout
from erniecore_planner.activations import (
    Work,
    logits_bytes,
    saved_by_layer,
    seeing_bytes,
    vision_bytes,
    workspace_of_layer,
)
from erniecore_planner.jobs import (
    Job,
    attention_parameters,
    expert_parameters,
    idle_parameters,
    mlp_parameters,
    mtp_parameters,
    small_parameters,
    total_parameters,
)
from erniecore_planner.layouts import Options

#: most tokens of a rank's experts, as a multiple of the mean
IMBALANCE = 1.3
#: keys and values of one rank that a rank of a ring has at a time, with their gradients: those at work, coming, leaving and
#: padded, and gradients made, coming and leaving
RING = 8
#: what the driver, the communication library and kernels take of an accelerator; share lost between blocks
FIXED, LOST = 1 << 30, 0.06
#: elements of the messages in which gradients travel, and how many of them there are at a time
MESSAGE, MESSAGES = 6 << 20, 2


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one accelerator. ``host``: of optimizer state, in the host's memory."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    buffers: int
    reserve: int
    host: int = 0

    @property
    def total(self) -> int:
        """Memory of the accelerator, in bytes."""
        return sum(getattr(self, f) for f in self.__slots__ if f != "host")


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a stage on one accelerator, and those of the largest layer: cut by t, and of experts by e t.
    ``tables``: those of ``dense`` that are embedding or head."""

    dense: float
    experts: float
    largest: float
    tables: float


@lru_cache(maxsize=1 << 14)
def parameter_counts(job: Job, first: int, end: int, tensor: int, expert: int) -> ParameterCounts:
    """Parameters of layers ``first`` to ``end``, with the embedding before the first layer and the head after the last."""
    shape, hidden, dense, experts, largest = job.shape, job.shape.hidden, 0.0, 0.0, 0.0
    layers = [*shape.layers[first:end], *(shape.mtp_layers if end == len(shape.layers) else ())]
    for layer, many in Counter(layers).items():
        own = (attention_parameters(hidden, layer) + mlp_parameters(hidden, layer)) / tensor
        own += small_parameters(hidden, layer)
        routed = expert_parameters(hidden, layer) / tensor / expert
        dense, experts, largest = dense + many * own, experts + many * routed, max(largest, own + routed)
    table, tables = shape.vocab * hidden / tensor, 0.0
    if first == 0:
        tables += table
    if end == len(shape.layers):
        dense += hidden + len(shape.mtp_layers) * mtp_parameters(hidden)
        tables += 0 if shape.tied and first == 0 else table
    return ParameterCounts(dense + tables, experts, largest, tables)


@lru_cache(maxsize=1 << 14)
def idle(job: Job, first: int, end: int, tensor: int, expert: int) -> float:
    """Parameters of layers ``first`` to ``end`` that are never trained, and on the first stage those beside them: what only
    pictures pass."""
    layers = Counter(job.shape.layers[first:end])
    experts = sum(many * idle_parameters(job.shape.hidden, layer) for layer, many in layers.items())
    return (0 if first else job.shape.beside) + experts / tensor / expert


def kept(job: Job, first: int, end: int, chosen: ParallelLayout, recompute: str) -> tuple[int, int]:
    """(bytes saved of one micro-batch, bytes of workspace) of a stage."""
    uneven = chosen.expert * chosen.tensor > 1
    ring = chosen.context_attention == "ring"
    return _kept(job, first, end, chosen.tensor, chosen.context, ring, uneven, chosen.sequence, recompute)


@lru_cache(maxsize=1 << 14)
def _kept(
    job: Job,
    first: int,
    end: int,
    tensor: int,
    context: int,
    ring: bool,
    uneven: bool,
    sequence: bool,
    recompute: str,
) -> tuple[int, int]:
    """As :func:`kept`, of no more than what it depends on. ``uneven``: experts may get more than their share of tokens."""
    shape = job.shape
    work = Work(
        tokens=job.tokens // context,
        length=job.length,
        element=job.element,
        recompute=recompute,
        loss_chunk=job.loss_chunk,
        head_trained=job.adapter is None,
        patches=job.patches,
        tower=job.tower,
        joint=job.joint,
    )
    layers = [*shape.layers[first:end], *(shape.mtp_layers if end == len(shape.layers) else ())]
    size, workspace = 0, 0
    for layer, many in Counter(layers).items():
        stays, passing = layer_bytes(shape.hidden, layer, work, tensor, uneven, sequence)
        stays_too, passes_too = keys_elsewhere(layer, work.tokens, context, recompute, ring=ring)
        size, workspace = size + many * (stays + stays_too // tensor), max(workspace, passing + passes_too // tensor)
    if first == 0 and shape.vision is not None:
        size, workspace = size + vision_bytes(shape.vision, work), max(workspace, seeing_bytes(shape.vision, work))
    if recompute != "full" and job.adapter is not None:
        size += work.element * work.tokens * job.ranks * (end - first) // len(shape.layers)
    if end == len(shape.layers):
        size += 12 * work.tokens * (shape.hidden + 1) * (1 + len(shape.mtp_layers)) // (tensor if sequence else 1)
        head = replace(shape, vocab=shape.vocab // tensor)
        workspace = max(workspace, logits_bytes(head, work))
    return size, workspace


def keys_elsewhere(layer: LayerShape, tokens: int, context: int, recompute: str, *, ring: bool) -> tuple[int, int]:
    """(saved, workspace) of a layer for keys and values, in float32, of positions that other ranks along ``context`` have.
    ``tokens``: of one rank."""
    if context == 1:
        return 0, 0
    one = 8 * tokens * layer.kv_heads * layer.head_dim
    if ring:
        return 0, RING * one
    rest, again = (context - 1) * one, recompute in ("full", "attention")
    return (0, rest) if again else (rest, 0)


def layer_bytes(hidden: int, layer: LayerShape, work: Work, cut: int, uneven: bool, sequence: bool) -> tuple[int, int]:
    """(saved, workspace) of one layer on one accelerator. Tensor ranks share heads and widths; of a token's experts each has
    its own, so that it sees a part of the rows."""
    own = replace(
        layer,
        heads=layer.heads // cut,
        kv_heads=layer.kv_heads // cut,
        mlp=layer.mlp // cut,
        selected=0,
    )
    parts = saved_by_layer(hidden, own, work)
    parts["residual"] //= cut if sequence else 1
    stays = sum(parts.values())
    passing = workspace_of_layer(hidden, own, work)
    if not layer.experts:
        return stays, passing
    routed = replace(work, tokens=round(work.tokens * (IMBALANCE if uneven else 1.0) / cut))
    only = LayerShape(heads=0, kv_heads=0, head_dim=0, mlp=0, experts=0, selected=layer.selected, expert=layer.expert)
    each = replace(routed, recompute="none")
    stays += 0 if work.recompute == "full" else saved_by_layer(hidden, only, each)["experts"]
    again = saved_by_layer(hidden, only, each)["experts"] if work.recompute == "full" else 0
    return stays, max(passing, workspace_of_layer(hidden, only, each)) + again


def stage_memory(
    job: Job, chosen: ParallelLayout, option: Options, first: int, end: int, *, index: int, on_accelerator: bool = True
) -> StageMemory:
    """Of an accelerator of pipeline stage ``index``, which has layers ``first`` to ``end``."""
    mine = parameter_counts(job, first, end, chosen.tensor, chosen.expert)
    shards = chosen.sharding
    expert_shards = max(1, shards // chosen.expert)
    stage = chosen.sharding_stage if shards > 1 else 0
    parameters = mine.dense + mine.experts
    sharded = mine.dense / shards + mine.experts / expert_shards
    seeing = 0 if first else job.vision
    trained, trained_sharded = parameters + seeing, sharded + seeing / shards
    if job.adapter is not None:
        share = adapter_share(job)
        trained, trained_sharded = parameters * share, sharded * share
    weights = (sharded + (2 + chosen.prefetch) * mine.largest if stage == 3 else parameters) * job.weight
    weights += trained * job.element if job.adapter is not None else 0
    weights += parameters * job.weight * job.copies if job.adapter is None else 0
    unused = idle(job, first, end, chosen.tensor, chosen.expert) / (expert_shards if stage == 3 else 1)
    weights += unused * job.weight * (1 + (job.copies if job.adapter is None else 0))
    gradients = job.gradient * (trained_sharded + min(trained, MESSAGE) if stage >= 2 else trained)
    state = job.state(trained_sharded, mine.tables / shards) if stage else job.state(trained, mine.tables)
    size, workspace = kept(job, first, end, chosen, option.recompute)
    micro_batches = job.rows // (chosen.data_size * job.micro)
    in_flight = min(micro_batches, chosen.pipeline - index)
    groups = (chosen.tensor > 1) + (chosen.pipeline > 1) + (chosen.data_size > 1)
    buffers = round(MESSAGES * MESSAGE * job.gradient * groups) + (4 * job.element * job.tokens * job.shape.hidden) * (
        chosen.pipeline > 1 or chosen.expert > 1
    )
    if stage == 3 and job.generates:  # a rollout has the whole parameters, and no gradients and activations
        gathered = job.weight * (parameters - sharded - 2 * mine.largest)
        buffers += max(0, round(gathered - gradients - in_flight * size - workspace - buffers))
    used = weights + gradients + (0 if option.offload else state) + in_flight * size + workspace + buffers
    return StageMemory(
        weights=round(weights),
        gradients=round(gradients),
        optimizer=0 if option.offload else round(state),
        activations=in_flight * size,
        workspace=workspace,
        buffers=buffers,
        reserve=FIXED + round(LOST * used) if on_accelerator else 0,
        host=round(state) if option.offload else 0,
    )


@lru_cache(maxsize=64)
def adapter_share(job: Job) -> float:
    """Parameters of the adapter per parameter of the base."""
    assert job.adapter is not None
    return job.adapter / total_parameters(job.shape)
