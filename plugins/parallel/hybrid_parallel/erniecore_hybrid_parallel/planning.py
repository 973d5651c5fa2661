"""Degrees from the settings and the number of processes; impossible ones are refused by the key that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from erniecore.api import ConfigError
from erniecore.api.parallel import DecoderShape
from erniecore.api.planning import ParallelLayout
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.mesh import AXES, Mesh

#: what has degrees: settings, or a layout of a planner
Degrees = HybridConfig | ParallelLayout


def num_processes(config: HybridConfig) -> int:
    """The product of the degrees; ``data`` counts as 1 when it is left open."""
    return prod(max(1, int(getattr(config, axis))) for axis in AXES)


def make_mesh(config: Degrees, world_size: int) -> Mesh:
    """The grid of ranks for ``world_size`` processes.

    Args:
        config: the settings, or a ``ParallelLayout``.
    Raises:
        ConfigError: degrees that do not make ``world_size``, or that contradict each other.
    """
    degrees = {axis: int(getattr(config, axis)) for axis in AXES}
    fixed = prod(degree for axis, degree in degrees.items() if axis != "data")
    if world_size % fixed:
        key, _ = max(((a, d) for a, d in degrees.items() if a != "data"), key=lambda item: item[1])
        raise ConfigError.at(
            f"parallel.{key}", f"{world_size} processes cannot be divided into groups of {fixed}: change it, or --nproc"
        )
    degrees["data"] = degrees["data"] or world_size // fixed
    if degrees["data"] * fixed != world_size:
        found = f"{degrees['data']} replicas of {fixed} processes are {degrees['data'] * fixed}, but the run has {world_size}"
        raise ConfigError.at("parallel.data", f"{found}; 0 takes what there is")
    mesh = Mesh(degrees, config.expert, axis_order(config, degrees), listed_ranks(config, world_size))
    if mesh.data_size % mesh.expert:
        raise ConfigError.at(
            "parallel.expert",
            f"{mesh.data_size} ranks have rows of their own (data x sharding): set a divisor, or raise those",
        )
    if mesh.expert > 1 and degrees["sharding"] % mesh.expert and mesh.expert % degrees["sharding"]:
        raise ConfigError.at(
            "parallel.expert", f"{mesh.expert} and parallel.sharding={degrees['sharding']} must divide each other"
        )
    if config.sequence and degrees["tensor"] == 1:
        raise ConfigError.at("parallel.sequence", "has no meaning without parallel.tensor above 1")
    if config.context_attention == "ring" and degrees["context"] == 1:
        raise ConfigError.at("parallel.context_attention", "has no meaning without parallel.context above 1")
    if config.sharding_stage > 1 and config.sharding == 1:
        raise ConfigError.at("parallel.sharding_stage", "has no meaning without parallel.sharding above 1")
    return mesh


def axis_order(config: Degrees, degrees: Mapping[str, int]) -> tuple[str, ...]:
    """The axes as ranks are counted along them; those of size 1 that ``parallel.order`` leaves out come last.

    Raises:
        ConfigError: an axis is there twice, or one with several ranks is missing.
    """
    if not config.order:
        return AXES
    order = tuple(config.order)
    missing = [axis for axis in AXES if axis not in order]
    used = [axis for axis in missing if degrees[axis] > 1]
    if used or len(set(order)) != len(order):
        what = f"lacks {', '.join(used)}" if used else "has an axis twice"
        raise ConfigError.at("parallel.order", f"[{', '.join(order)}] {what}; list each axis with several ranks once")
    return (*order, *missing)


def listed_ranks(config: Degrees, world_size: int) -> tuple[int, ...]:
    """The ranks of ``parallel.ranks``, ranges spelled out; empty where they are in order.

    Raises:
        ConfigError: something that is no rank or range, or another list than of all ranks, each once.
    """
    if not config.ranks:
        return ()
    found: list[int] = []
    for item in config.ranks:
        first, dash, last = str(item).partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or max(int(first), int(last or 0)) >= world_size:
            message = f"{item!r} is neither a rank nor a range such as 0-7 of the {world_size} ranks"
            raise ConfigError.at("parallel.ranks", message)
        found += range(int(first), int(last or first) + 1)
    if sorted(found) != list(range(world_size)):
        wrong = sorted(set(range(world_size)) - set(found))
        what = f"rank {wrong[0]} is missing" if wrong else "some are there twice"
        raise ConfigError.at("parallel.ranks", f"each of the {world_size} ranks has one place; {what}")
    return () if found == list(range(world_size)) else tuple(found)


def rank_ranges(ranks: Sequence[int]) -> list[int | str]:
    """``ranks`` as :func:`listed_ranks` reads them, three or more in a row as a range."""
    found: list[int | str] = []
    start = 0
    for end in range(1, len(ranks) + 1):
        if end < len(ranks) and ranks[end] == ranks[end - 1] + 1:
            continue
        run = ranks[start:end]
        found += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else list(run)
        start = end
    return found


def choose_micro_batches(config: HybridConfig, mesh: Mesh) -> tuple[int, ...]:
    """Micro-batches of each rank with sequences of its own; empty where all have ``train.accumulation``.

    Raises:
        ConfigError: another number of entries than such ranks, or one below 1.
    """
    counts = tuple(config.micro_batches)
    if not counts:
        return ()
    if len(counts) != mesh.data_size or min(counts) < 1:
        found = f"{len(counts)} numbers, the least {min(counts)}"
        message = (
            f"one per rank with sequences of its own ({mesh.data_size} = data x sharding), each at least 1; got {found}"
        )
        raise ConfigError.at("parallel.micro_batches", message)
    return () if len(set(counts)) == 1 else counts


def check_accumulation(config: HybridConfig, accumulation: int) -> None:
    """Raises ``ConfigError`` where ``train.accumulation`` is not the largest of them: it would be read as another batch."""
    if config.micro_batches and max(config.micro_batches) != accumulation:
        message = (
            f"the largest of parallel.micro_batches is {max(config.micro_batches)}: set it to that (got {accumulation})"
        )
        raise ConfigError.at("train.accumulation", message)


def check_shape(mesh: Mesh, shape: DecoderShape | None) -> None:
    """What the ranks cannot divide of a model that says what its layers are like; of others it shows when it is cut.

    Raises:
        ConfigError: heads, widths, experts or a vocabulary, by the key of the axis.
    """
    if shape is not None:
        check_division(mesh.degrees["tensor"], mesh.expert, shape)


def check_division(tensor: int, expert: int, shape: DecoderShape) -> None:
    """As :func:`check_shape`, for so many ranks along these axes."""
    layers = (*shape.layers, *shape.mtp_layers)
    if expert > 1 and not any(layer.experts for layer in layers):
        raise ConfigError.at("parallel.expert", "this model has no experts to spread over ranks")
    for layer in dict.fromkeys(layers):
        counts = {
            "attention heads": layer.heads,
            "heads of keys and values": layer.kv_heads,
            "columns of an MLP": layer.mlp,
        }
        for what, count in {**counts, "tokens of the vocabulary": shape.vocab}.items():
            if count % tensor:
                message = f"{tensor} ranks cannot share {count} {what} evenly; set a divisor of it"
                raise ConfigError.at("parallel.tensor", message)
        if layer.experts % (tensor * expert):
            key = "parallel.expert" if expert > 1 else "parallel.tensor"
            raise ConfigError.at(
                key, f"{tensor * expert} ranks cannot share {layer.experts} experts evenly; set a divisor of it"
            )
