"""Seconds of an optimizer step of a layout: products at the rate of the accelerators, collectives by latency and bytes, the
bubble of the pipeline, the update. An estimate to rank layouts by; its parts say where the time goes.

A collective of n bytes per rank among g ranks (ring; Thakur et al., 2005): all-reduce 2 (g-1) a + 2 n (g-1)/(g b),
all-gather and reduce-scatter half of that, all-to-all (g-1) a + n (g-1)/(g b), with a seconds per message and b bytes per
second of the slowest link of the group. Nothing overlaps. Pipeline: (m + p - 1) micro-batches of the slowest stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from erniecore.api.model import LayerShape
from erniecore.api.planning import ParallelLayout
from erniecore_planner.clusters import HOST_LINK, LATENCY_FAR, Cluster, Machines
from erniecore_planner.jobs import Job, attention_parameters, mlp_parameters
from erniecore_planner.layout_memory import IMBALANCE, adapter_share, parameter_counts
from erniecore_planner.layouts import Options, span
from erniecore_planner.shares import rank_speeds

#: (index, (first layer, end)) of stages
Stages = tuple[tuple[int, tuple[int, int]], ...]


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step. ``products``; collectives ``tensor``, ``context``, ``expert``, ``sharding`` (within the step),
    ``gradients`` (at its end); ``bubble``: accelerators that wait for the pipeline; ``update``: of the optimizer."""

    products: float
    tensor: float
    context: float
    expert: float
    sharding: float
    bubble: float
    gradients: float
    update: float

    @property
    def total(self) -> float:
        """Seconds of one step."""
        within = self.products + self.tensor + self.context + self.expert + self.sharding
        return within + self.bubble + self.gradients + self.update


def all_reduce(size: float, ranks: int, link: tuple[float, float]) -> float:
    """Seconds for ``size`` bytes; ``link``: (seconds per message, bytes per second)."""
    return 2 * all_gather(size, ranks, link)


def all_gather(size: float, ranks: int, link: tuple[float, float]) -> float:
    """Seconds until all have ``size`` bytes together; the same for a reduce-scatter of them, and for an all-to-all."""
    if ranks <= 1:
        return 0.0
    return (ranks - 1) * link[0] + size * (ranks - 1) / ranks / link[1]


@lru_cache(maxsize=1 << 10)
def link_of(cluster: Cluster, span: int) -> tuple[float, float]:
    """(latency, bytes per second) of a group of ranks that lies within ``span`` neighbors."""
    slowest = cluster.slowest(0, cluster.size)
    if span <= cluster.per_machine and cluster.per_machine % span == 0:
        return slowest.latency, slowest.link
    return LATENCY_FAR, cluster.slowest_network


def link_along(cluster: Cluster, chosen: ParallelLayout, axis: str) -> tuple[float, float]:
    """(latency, bytes per second) of the slowest link along an axis: of the places that ranks have, or of neighbors."""
    return cluster.along[axis] if cluster.along else link_of(cluster, span(chosen, axis))


def layer_flops(job: Job, layer: LayerShape, recompute: str) -> float:
    """Of one token through one layer in training, forward, backward and again."""
    hidden = job.shape.hidden
    attention = 2.0 * attention_parameters(hidden, layer) + 2.0 * job.length * layer.heads * layer.head_dim
    rest = 2.0 * mlp_parameters(hidden, layer) + 6.0 * hidden * layer.selected * layer.expert
    rest += 2.0 * hidden * layer.experts
    forward = attention + rest
    back = 2 * forward if job.adapter is None else forward
    again = {"full": forward, "attention": attention}.get(recompute, 0.0)
    return forward + back + again + job.forward * forward


def head_flops(job: Job) -> float:
    """Of one token through the head."""
    forward = 2.0 * job.shape.vocab * job.shape.hidden
    return forward * ((3 if job.adapter is None else 2) + job.forward) * (1 + len(job.shape.mtp_layers))


@lru_cache(maxsize=1 << 12)
def layer_costs(job: Job, recompute: str) -> tuple[float, ...]:
    """Flops of each layer per token; the last one with head and with layers of multi-token prediction."""
    costs = [layer_flops(job, layer, recompute) for layer in job.shape.layers]
    costs[-1] += head_flops(job) + sum(layer_flops(job, layer, recompute) for layer in job.shape.mtp_layers)
    return tuple(costs)


def accelerators_of_stage(cluster: Cluster, chosen: ParallelLayout, index: int) -> Machines:
    """What the accelerators of a stage can do together."""
    return accelerators_between(
        cluster, index * chosen.size // chosen.pipeline, (index + 1) * chosen.size // chosen.pipeline
    )


@lru_cache(maxsize=1 << 12)
def accelerators_between(cluster: Cluster, start: int, stop: int) -> Machines:
    """See ``Cluster.slowest``, which this remembers."""
    return cluster.slowest(start, stop)


@lru_cache(maxsize=1 << 12)
def distinct_stages(job: Job, cluster: Cluster, chosen: ParallelLayout) -> Stages:
    """(index, (first layer, end)) of the stages that differ: of those with the same layers on the same accelerators, one."""
    found: dict[object, tuple[int, tuple[int, int]]] = {}
    for index, (first, end) in enumerate(stages(job, chosen)):
        ends = first == 0, end == len(job.shape.layers)
        found.setdefault(
            (layers_of(job, first, end), *ends, accelerators_of_stage(cluster, chosen, index)), (index, (first, end))
        )
    return tuple(found.values())


def stages(job: Job, chosen: ParallelLayout) -> list[tuple[int, int]]:
    """(first layer, end) of each stage."""
    ends = list(accumulate(chosen.split or (len(job.shape.layers),)))
    return list(zip((0, *ends[:-1]), ends, strict=True))


def step_time(job: Job, cluster: Cluster, chosen: ParallelLayout, option: Options) -> StepTime:
    """Of one optimizer step."""
    micro_batches = micro_batches_of(job, chosen)
    costs = layer_costs(job, option.recompute)
    bounds = distinct_stages(job, cluster, chosen)
    uneven = IMBALANCE if chosen.expert > 1 else 1.0
    shared = chosen.tensor * chosen.context
    found = []
    for index, (first, end) in bounds:
        rate = accelerators_of_stage(cluster, chosen, index).flops
        products = sum(costs[first:end]) * job.tokens / shared / rate
        parts = messages(job, cluster, chosen, option, first, end, uneven)
        found.append((products, *parts))
    slowest = max(found, key=sum)
    each = [micro_batches * part for part in slowest]
    if chosen.shares:  # the rank that is done last; ``slowest`` is one micro-batch on the slowest of all
        speeds = rank_speeds(cluster, chosen)
        least = min(speeds)
        each[0] = slowest[0] * max(share * least / speed for share, speed in zip(chosen.shares, speeds, strict=True))
    bubble = (chosen.pipeline - 1) * sum(slowest) + passed_on(job, cluster, chosen, micro_batches)
    gradients, update = at_the_end(job, cluster, chosen, option, bounds)
    return StepTime(each[0], each[1], each[2], each[3], each[4], bubble, gradients, update)


def micro_batches_of(job: Job, chosen: ParallelLayout) -> int:
    """Of a step, the most on any rank."""
    return max(chosen.shares) if chosen.shares else -(-job.rows // (chosen.data_size * job.micro))


def passed_on(job: Job, cluster: Cluster, chosen: ParallelLayout, micro_batches: int) -> float:
    """Seconds of a step in which hidden states and their gradients go from stage to stage."""
    if chosen.pipeline == 1:
        return 0.0
    passed = job.element * job.tokens * job.shape.hidden / chosen.context
    latency, rate = link_along(cluster, chosen, "pipeline")
    return 2 * (micro_batches + chosen.pipeline - 1) * (latency + passed / rate)


@lru_cache(maxsize=1 << 12)
def layers_of(job: Job, first: int, end: int) -> tuple[tuple[LayerShape, int], ...]:
    """Kinds of layers of a stage, and how many of each."""
    shape = job.shape
    return tuple(Counter([*shape.layers[first:end], *(shape.mtp_layers if end == len(shape.layers) else ())]).items())


def messages(
    job: Job, cluster: Cluster, chosen: ParallelLayout, option: Options, first: int, end: int, uneven: float
) -> tuple[float, float, float, float]:
    """Seconds of collectives of one micro-batch through a stage: tensor, context, expert, sharding."""
    again = option.recompute == "full"
    degrees, ring = (chosen.tensor, chosen.context, chosen.expert), chosen.context_attention == "ring"
    within = exchanged(job, cluster, degrees, (first, end), again, uneven, ring)
    return *within, sharding_messages(job, cluster, chosen, first, end, again)


@lru_cache(maxsize=1 << 16)
def exchanged(
    job: Job,
    cluster: Cluster,
    axes: tuple[int, int, int],
    bounds: tuple[int, int],
    again: bool,
    uneven: float,
    ring: bool,
) -> tuple[float, float, float]:
    """Seconds of collectives of one micro-batch through the layers between ``bounds`` along ``axes``: tensor, context, expert.
    ``again``: the forward pass is computed once more. ``ring``: keys and values go around, in the backward pass beside their
    gradients in float32."""
    tensor, context, expert = axes
    shape, tokens = job.shape, job.tokens / context
    stream = job.element * tokens * shape.hidden
    layers = layers_of(job, *bounds)
    passes, degrees = 2 + again + job.forward, ParallelLayout(tensor, context, expert=expert)
    halves = 2 * passes * sum(many for _, many in layers)
    along_tensor = halves * all_reduce(stream, tensor, link_along(cluster, degrees, "tensor"))
    along_context = along_expert = 0.0
    for layer, many in layers:
        keys = 2 * job.element * job.tokens * layer.kv_heads * layer.head_dim / tensor
        far = link_along(cluster, degrees, "context")
        along_context += many * passes * all_gather(keys, context, far)
        if ring and context > 1:
            more = 4 * context / (context - 1) / job.element - 1  # of the gradients: all the way round, and wider
            along_context += many * (all_gather(keys, context, far) + all_gather(more * keys, context, far))
        if layer.experts:
            sent = stream * layer.selected / tensor * uneven
            along_expert += many * 2 * passes * all_gather(sent, expert, link_along(cluster, degrees, "expert"))
    return along_tensor, along_context, along_expert


def sharding_messages(job: Job, cluster: Cluster, chosen: ParallelLayout, first: int, end: int, again: bool) -> float:
    """Seconds of collectives of one micro-batch through these layers along ``sharding``: gradients from stage 2 on, parameters
    in stage 3."""
    if chosen.sharding == 1 or chosen.sharding_stage < 2:
        return 0.0
    link = link_along(cluster, chosen, "sharding")
    mine = parameter_counts(job, first, end, chosen.tensor, chosen.expert)
    size = trained(job, mine.dense) + (trained(job, mine.experts) if chosen.expert == 1 else 0.0)
    seconds = all_gather(job.gradient * size, chosen.sharding, link)
    if chosen.sharding_stage == 3:
        seconds += (1 + 1 + again) * all_gather(job.weight * (mine.dense + mine.experts), chosen.sharding, link)
    return seconds


def at_the_end(
    job: Job, cluster: Cluster, chosen: ParallelLayout, option: Options, bounds: Stages
) -> tuple[float, float]:
    """Seconds once per step: gradients between replicas and weights after the update; the update itself."""
    slowest = (0.0, 0.0)
    for index, (first, end) in bounds:
        mine = parameter_counts(job, first, end, chosen.tensor, chosen.expert)
        dense, experts = trained(job, mine.dense), trained(job, mine.experts)
        link, far = link_along(cluster, chosen, "data_size"), link_along(cluster, chosen, "sharding")
        shards = chosen.sharding if chosen.sharding_stage >= 2 else 1
        replicas = chosen.data_size // chosen.expert
        expert_shards = min(replicas, max(1, shards // chosen.expert))
        gradients = all_reduce(job.gradient * dense / shards, chosen.data_size // shards, link)
        gradients += all_reduce(job.gradient * experts / expert_shards, replicas // expert_shards, link)
        if chosen.sharding_stage < 3:
            gradients += all_gather(job.element * (dense + experts), chosen.sharding, far)
        accelerator = accelerators_of_stage(cluster, chosen, index)
        own = (dense + experts) / chosen.sharding
        moved = own * (job.gradient + job.element) + 2 * job.state(own, mine.tables / chosen.sharding)
        update = moved / accelerator.bandwidth if accelerator.bandwidth else 0.0
        if option.offload:
            update = moved / HOST_LINK
        slowest = max(slowest, (gradients, update), key=sum)
    return slowest


def trained(job: Job, parameters: float) -> float:
    """Of these parameters, or the adapter's part beside them."""
    return parameters if job.adapter is None else parameters * adapter_share(job)
