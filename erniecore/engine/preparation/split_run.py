"""A run on several processes as its plan sees it: what each pipeline stage holds and how long its part of a step takes. No
paddle. The arithmetic is in ``erniecore.planning``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from erniecore.engine.preparation.layout_plan import job_of
from erniecore.engine.preparation.step_time import load_of, measured_costs
from erniecore.planning.activations import Work
from erniecore.planning.clusters import Machines, uniform
from erniecore.planning.cost_files import timed_on
from erniecore.planning.jobs import Job
from erniecore.planning.layout_time import at_the_end, messages, trained
from erniecore.planning.layouts import Degrees, Options
from erniecore.planning.operators import Costs, factors, step_parts
from erniecore.planning.rates import LinkRate, links_file, read_links
from erniecore.planning.split_stages import StageHolds, holds, layers_by_stage, shape_of

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared


@dataclass(frozen=True, slots=True)
class SplitTime:
    """Seconds of a step of a divided run: ``parts`` by class of operator of the slowest stage, ``messages`` of collectives by
    axis, ``waiting`` for the other stages. ``seconds``: all of it."""

    parts: Mapping[str, float]
    messages: Mapping[str, float]
    waiting: float
    seconds: float


def degrees_of(ready: Prepared) -> Degrees:
    """Of the run's parallel strategy; axes that it does not have are 1."""
    return Degrees(**{f.name: int(ready.parallel_plan.degrees.get(f.name, 1)) for f in fields(Degrees)})


def options_of(ready: Prepared) -> Options:
    """What else the settings choose."""
    parallel, train = ready.settings.parallel, ready.settings.train
    stage, sequence = getattr(parallel, "sharding_stage", 1), getattr(parallel, "sequence", False)
    return Options(int(stage), train.recompute, train.optimizer_offload, bool(sequence))


def stages_of_run(ready: Prepared, work: Work) -> list[StageHolds]:
    """What a process of each stage holds; nothing where the model does not say what its layers are like."""
    chosen, option = degrees_of(ready), options_of(ready)
    job = job_of(ready, chosen.rows)
    if job is None:
        return []
    parts = layers_by_stage(ready.parallel_plan.split, len(job.shape.layers), chosen.pipeline)
    return [holds(job, work, chosen, option, own, stage) for stage, own in enumerate(parts)]


def split_time(ready: Prepared, work: Work, environ: Mapping[str, str]) -> SplitTime | None:
    """None where operators or messages between so many processes were not measured on this machine."""
    chosen, option = degrees_of(ready), options_of(ready)
    costs, link = measured_costs(ready, environ), link_of(ready, chosen.size, environ)
    job = job_of(ready, chosen.rows)
    if costs is None or link is None or job is None:
        return None
    own, count = factors(timed_on(environ, costs)), job.rows // (chosen.rows * job.micro)
    card = Machines(1, chosen.size, "", 1, 1.0, link=link.bandwidth, latency=link.latency)
    cluster = uniform(chosen.size, card)
    by_stage = layers_by_stage(ready.parallel_plan.split, len(job.shape.layers), chosen.pipeline)
    found = []
    for stage, pieces in enumerate(by_stage):
        parts = {
            name: own[name] * link.crowd * seconds
            for name, seconds in stage_parts(ready, job, work, chosen, pieces, stage, costs).items()
        }
        sent = dict.fromkeys(("tensor", "context", "expert", "sharding"), 0.0)
        for first, end in pieces:
            each = messages(job, cluster, chosen, option, first, end, 1.0)
            for axis, seconds in zip(sent, each, strict=True):
                sent[axis] += count * seconds
        found.append((parts, sent))
    parts, sent = max(found, key=lambda row: sum(row[0].values()) + sum(row[1].values()))
    bounds = tuple((stage, pieces[-1]) for stage, pieces in enumerate(by_stage))
    sent["gradients"] = at_the_end(job, cluster, chosen, option, bounds)[0]
    waiting = 0.0
    if chosen.pipeline > 1:
        busy = sum(seconds for name, seconds in parts.items() if name != "update") + sum(sent.values())
        chunks = max(1, len(by_stage[0]))
        passed = job.element * job.tokens * job.shape.hidden / link.bandwidth + link.latency
        waiting = (chosen.pipeline - 1) * busy / count / chunks + 2 * chunks * count * passed
    return SplitTime(parts, sent, waiting, sum(parts.values()) + sum(sent.values()) + waiting)


def stage_parts(
    ready: Prepared,
    job: Job,
    work: Work,
    chosen: Degrees,
    pieces: list[tuple[int, int]],
    stage: int,
    costs: Costs,
) -> dict[str, float]:
    """Seconds of the operators of one process, by class; the optimizer's only of its shard."""
    shape = shape_of(job.shape, pieces, chosen.tensor, chosen.expert)
    mine = holds(job, work, chosen, options_of(ready), pieces, stage).parameters
    load = replace(
        load_of(ready),
        micro_batches=job.rows // (chosen.rows * job.micro),
        trained=trained(job, mine) / chosen.sharding,
        first=pieces[0][0] == 0,
        last=pieces[-1][1] == len(job.shape.layers),
        routed=1 / chosen.tensor,
    )
    return step_parts(shape, replace(work, tokens=work.tokens // chosen.context), load, costs)


def link_of(ready: Prepared, processes: int, environ: Mapping[str, str]) -> LinkRate | None:
    """Between so many processes, as ``ernie bench comm`` found it."""
    found: list[Any] = [
        link
        for link in read_links(links_file(environ))
        if (link.device, link.processes) == (ready.device.name, processes)
    ]
    return found[-1] if found else None
