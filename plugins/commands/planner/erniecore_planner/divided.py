"""A run on several processes as its plan sees it: what a rank of each pipeline stage holds and how long its step takes. No
paddle. The arithmetic is in ``stages``, ``layout_time`` and ``operators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from erniecore.api.planning import ParallelLayout, PlannedRun
from erniecore_planner.activations import Work
from erniecore_planner.clusters import Machines, uniform
from erniecore_planner.cost_files import timed_on
from erniecore_planner.jobs import Job, job_of
from erniecore_planner.layout_time import at_the_end, messages, trained
from erniecore_planner.layouts import Options
from erniecore_planner.operators import Costs, factors, step_parts
from erniecore_planner.rates import LinkRate, links_file, read_links
from erniecore_planner.stages import StageHolds, holds, layers_by_stage, shape_of
from erniecore_planner.step_times import load_of, measured_costs


@dataclass(frozen=True, slots=True)
class SplitTime:
    """Seconds of a step of a run on several ranks: ``parts`` by class of operator of the slowest stage, ``messages`` of
    collectives by axis, ``waiting`` for the other stages. ``seconds``: all of it."""

    parts: Mapping[str, float]
    messages: Mapping[str, float]
    waiting: float
    seconds: float


def options_of(run: PlannedRun) -> Options:
    """What the settings choose beside the layout."""
    return Options(run.train.recompute, run.optimizer.offload)


def stages_of_run(run: PlannedRun, work: Work) -> list[StageHolds]:
    """What a rank of each stage holds; nothing where the model does not say what its layers are like."""
    job = job_of(run, work, run.layout.data_size)
    if job is None:
        return []
    chunks = layers_by_stage(run.layout.split, len(job.shape.layers), run.layout.pipeline)
    return [holds(job, work, run.layout, own, stage) for stage, own in enumerate(chunks)]


def split_time(run: PlannedRun, work: Work, environ: Mapping[str, str]) -> SplitTime | None:
    """None where operators or messages between so many processes were not measured on this machine."""
    layout, option = run.layout, options_of(run)
    costs, link = measured_costs(run, environ), link_of(run, layout.size, environ)
    job = job_of(run, work, layout.data_size)
    if costs is None or link is None or job is None:
        return None
    own, count = factors(timed_on(environ, costs)), job.rows // (layout.data_size * job.micro)
    device = Machines(1, layout.size, "", 1, 1.0, link=link.bandwidth, latency=link.latency)
    cluster = uniform(layout.size, device)
    by_stage = layers_by_stage(layout.split, len(job.shape.layers), layout.pipeline)
    found = []
    for stage, chunks in enumerate(by_stage):
        seconds = stage_parts(run, job, work, chunks, stage, costs)
        parts = {name: own[name] * link.contention * value for name, value in seconds.items()}
        sent = dict.fromkeys(("tensor", "context", "expert", "sharding"), 0.0)
        for first, end in chunks:
            each = messages(job, cluster, layout, option, first, end, 1.0)
            for axis, value in zip(sent, each, strict=True):
                sent[axis] += count * value
        found.append((parts, sent))
    parts, sent = max(found, key=lambda row: sum(row[0].values()) + sum(row[1].values()))
    bounds = tuple((stage, chunks[-1]) for stage, chunks in enumerate(by_stage))
    sent["gradients"] = at_the_end(job, cluster, layout, option, bounds)[0]
    waiting = 0.0
    if layout.pipeline > 1:
        busy = sum(seconds for name, seconds in parts.items() if name != "update") + sum(sent.values())
        virtual = max(1, len(by_stage[0]))
        passed = job.element * job.tokens * job.shape.hidden / link.bandwidth + link.latency
        waiting = (layout.pipeline - 1) * busy / count / virtual + 2 * virtual * count * passed
    return SplitTime(parts, sent, waiting, sum(parts.values()) + sum(sent.values()) + waiting)


def stage_parts(
    run: PlannedRun, job: Job, work: Work, chunks: list[tuple[int, int]], stage: int, costs: Costs
) -> dict[str, float]:
    """Seconds of the operators of one rank, by class; the optimizer's only of its shard."""
    layout: ParallelLayout = run.layout
    shape = shape_of(job.shape, chunks, layout.tensor, layout.expert)
    mine = holds(job, work, layout, chunks, stage).parameters
    load = replace(
        load_of(run),
        micro_batches=job.rows // (layout.data_size * job.micro),
        trained=trained(job, mine) / layout.sharding,
        first=chunks[0][0] == 0,
        last=chunks[-1][1] == len(job.shape.layers),
        routed=1 / layout.tensor,
    )
    return step_parts(shape, replace(work, tokens=work.tokens // layout.context), load, costs)


def link_of(run: PlannedRun, processes: int, environ: Mapping[str, str]) -> LinkRate | None:
    """Between so many processes, as ``ernie bench comm`` found it."""
    wanted = (run.device.name, processes)
    found = [link for link in read_links(links_file(environ)) if (link.device, link.processes) == wanted]
    return found[-1] if found else None
