"""A layout checked on paper, for as many ranks as there may be: the rank map, every group, what each stage holds, and the
order of passes. No paddle, no processes: what a cluster would do first is done here for all of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from erniecore.api.parallel import DecoderShape, Layout
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.mesh import AXES, BATCH, Mesh, edges, problems
from erniecore_hybrid_parallel.planning import make_mesh
from erniecore_hybrid_parallel.schedules import schedule
from erniecore_hybrid_parallel.simulation import ScheduleError, Simulated, Simulation
from erniecore_hybrid_parallel.split import choose_split, costs_of, ranges

#: style -> axis that the tensor ranks cut; experts are cut by the ranks of both axes together
_CUT_AXIS = {"column": -1, "row": 0, "vocab": 0, "expert": 0}


@dataclass(frozen=True)
class Checked:
    """A layout and what was found.

    Attributes:
        wrong: broken invariants; empty for a layout that works. groups: number of groups of ranks that were checked.
        parameters: of each stage, all its ranks together, each element once. per_rank: the most that one rank holds.
        simulated: one step with the costs of the split; None where the order of passes cannot be executed.
    """

    mesh: Mesh
    split: tuple[int, ...]
    wrong: tuple[str, ...]
    groups: int
    parameters: tuple[int, ...]
    per_rank: int
    simulated: Simulated | None


def check(
    config: HybridConfig,
    world_size: int,
    shape: DecoderShape,
    layout: Layout,
    shapes: Mapping[str, Sequence[int]],
    micros: int,
) -> Checked:
    """Everything that must hold, for every rank.

    Args:
        shapes: name -> shape of every parameter of the model. micros: micro-batches per step.

    Raises:
        ConfigError: degrees or a split that are refused anyway.
    """
    mesh = make_mesh(config, world_size)
    split = choose_split(config, shape) or (len(shape.layers),)
    found, groups = _of_groups(mesh, config.chunks)
    stage_params = [stage_names(layout, shapes, split, stage, config.pipeline) for stage in range(config.pipeline)]
    found += _of_ownership(mesh, layout, shapes, stage_params)
    simulated = None
    try:
        simulated = simulate(config, shape, split, micros)
    except ScheduleError as error:
        found.append(str(error))
    sizes = tuple(sum(prod(shapes[name]) for name in names) for names in stage_params)
    most = max(sum(_here(mesh, layout, name, shapes[name]) for name in names) for names in stage_params)
    return Checked(mesh, split, tuple(found), groups, sizes, most, simulated)


def _of_groups(mesh: Mesh, chunks: int) -> tuple[list[str], int]:
    """Groups are disjoint and complete, and the rank map is one to one; channels join neighbors once."""
    found = [
        f"rank {r}: its place is another rank's" for r in range(mesh.size) if mesh.rank_at(mesh.coordinates(r)) != r
    ]
    kinds = [(mesh.groups(axis), mesh.degrees[axis]) for axis in AXES]
    kinds += [(mesh.groups(*BATCH), mesh.data_size), (mesh.expert_groups(), mesh.expert)]
    kinds += [(mesh.expert_replicas(), mesh.data_size // mesh.expert)]
    for groups, length in kinds:
        found += problems(groups, mesh.size, length)
    lines = mesh.groups("pipeline")
    pairs = [pair for line in lines for pair in edges(line, 1, chunks > 1)]
    if len({*pairs}) < len(pairs):
        found.append("two channels between the same ranks in the same direction")
    return found, sum(len(groups) for groups, _ in kinds) + 2 * len(pairs)


def stage_names(
    layout: Layout, shapes: Mapping[str, Sequence[int]], split: Sequence[int], stage: int, stages: int
) -> list[str]:
    """Names of the parameters that a stage holds."""
    names = layout.stages
    if stages == 1 or names is None:
        return list(shapes)
    mine = {
        index
        for virtual_stage, layers in enumerate(ranges(split))
        if virtual_stage % stages == stage
        for index in layers
    }
    first, last = stage == 0, stage == stages - 1
    tied = not any(name.startswith(tuple(f"{head}.weight" for head in names.head)) for name in shapes)
    further = any(name.startswith(tuple(f"{block}." for block in names.further)) for name in shapes)

    def here(name: str) -> bool:
        if name.startswith(f"{names.layers}."):
            return int(name[len(names.layers) + 1 :].partition(".")[0]) in mine
        if name.startswith(f"{names.embedding}."):
            return first or (last and (tied or further))
        return last

    return [name for name in shapes if here(name)]


def _of_ownership(
    mesh: Mesh, layout: Layout, shapes: Mapping[str, Sequence[int]], stage_params: Sequence[Sequence[str]]
) -> list[str]:
    """Every parameter is on a stage, on two only if both ends share it; its cuts make the whole."""
    found = []
    both = f"{layout.stages.embedding}." if layout.stages else ""
    for name, shape in shapes.items():
        stages = (
            [stage for stage, names in enumerate(stage_params) if name in {*names}] if len(stage_params) > 1 else [0]
        )
        if len(stages) != 1 and not (name.startswith(both) and stages == [0, len(stage_params) - 1]):
            found.append(f"{name} is on stages {stages}")
        axis, count = _cut(mesh, layout, name)
        if axis is None:
            found.append(f"{name} has no style")
        elif count > 1 and shape[axis] % count:
            found.append(f"{name}: {count} ranks cannot share {shape[axis]}")
    return found


def _cut(mesh: Mesh, layout: Layout, name: str) -> tuple[int | None, int]:
    """Axis and number of the cuts of a parameter."""
    style = layout.style(name)
    if style is None:
        return None, 1
    count = mesh.degrees["tensor"] * (mesh.expert if style == "expert" else 1) if style in _CUT_AXIS else 1
    return _CUT_AXIS.get(style, 0), count


def _here(mesh: Mesh, layout: Layout, name: str, shape: Sequence[int]) -> int:
    """Elements of a parameter on a rank that has some of it."""
    return prod(shape) // _cut(mesh, layout, name)[1]


def simulate(config: HybridConfig, shape: DecoderShape, split: Sequence[int], micros: int) -> Simulated:
    """One step in products per token; a backward pass costs twice a forward pass. Raises ``ScheduleError``."""
    stages, costs = config.pipeline, costs_of(shape).per_stage(split)
    orders = [schedule(stage, stages, config.chunks, micros) for stage in range(stages)]
    doubled = [2 * cost for cost in costs]
    return Simulation(orders, config.chunks, micros, forward=costs, backward=doubled).run()


def lines_of(found: Checked) -> Iterator[tuple[str, str]]:
    """(label, text) for a console."""
    yield "ranks", f"{found.mesh.size:,} as " + ", ".join(f"{a} {d}" for a, d in found.mesh.degrees.items() if d > 1)
    yield "layers", " ".join(map(str, found.split))
    yield "groups", f"{found.groups:,} groups and channels"
    yield "holds", f"at most {found.per_rank:,} parameters per rank"
    if found.simulated is not None:
        yield "bubble", f"{found.simulated.bubble:.1%} idle; passes kept per stage {max(found.simulated.alive)}"
    for text in found.wrong or ("nothing",):
        yield "wrong", text
