"""One process on its own, and what the engine computes from values of all ranks. How ranks talk is the parallel plugin's
matter; importing this is light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.plugin import hookimpl
from erniecore.types.process_group import ParameterState, ProcessGroup, ShardSpec
from erniecore.types.run import Cluster

if TYPE_CHECKING:
    from erniecore.types.model import Tensor
    from erniecore.types.samples import Array


class SingleProcess:
    """A run of one process; see ``erniecore.types.process_group.ProcessGroup``."""

    rank, size, counts, replication_factor, waiting, waited = 0, 1, True, 1, "", 0.0

    def watch(self, alarm: Callable[[], None]) -> None:
        pass

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def shard_spec(self, name: str, shape: Sequence[int]) -> ShardSpec:
        return ShardSpec(tuple(shape))

    def update_range(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        return None

    def gather_to_host(self, tensor: Tensor, spec: ShardSpec) -> Array:
        from erniecore.engine.arrays import to_numpy

        return to_numpy(tensor)

    def gather(self, tensor: Tensor, spec: ShardSpec) -> Tensor:
        return tensor

    def shard_ranks(self, spec: ShardSpec) -> Sequence[int]:
        return (0,)

    def broadcast(self, array: Array | None, dtype: str, shape: Sequence[int], source: int) -> Array:
        assert array is not None
        return array

    def attach(self, slots: Sequence[ParameterState]) -> None:
        pass

    def backward_done(self) -> None:
        pass

    def reduce_gradients(self, slots: Sequence[ParameterState]) -> None:
        pass

    def counts_parameter(self, name: str) -> bool:
        return True

    def updated(self, slots: Sequence[ParameterState]) -> None:
        pass

    def attach_model(self, model: Any, objective: Any) -> None:
        pass

    def close(self) -> None:
        pass


class CoreProcessGroup:
    """Provider of the hooks that every parallel plugin of several processes comes before."""

    @hookimpl(trylast=True)
    def ernie_count_processes(self) -> int:
        return 1

    @hookimpl(trylast=True)
    def ernie_open_process_group(self, cluster: Cluster) -> ProcessGroup:
        assert cluster.world_size == 1, (
            "a strategy that plans for several processes implements ernie_open_process_group"
        )
        return SingleProcess()


def sum_named(ranks: ProcessGroup, values: Mapping[str, float]) -> dict[str, float]:
    """Sums by name over the ranks whose rows differ."""
    total: dict[str, float] = {}
    for part in ranks.all_gather_object(dict(values) if ranks.counts else {}):
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def any_rank(ranks: ProcessGroup, reason: str) -> str:
    """Why a rank wants to stop: the first reason that any of them gave, the same on all; ``""`` when none did."""
    return next((found for found in ranks.all_gather_object(reason) if found), "")


def any_ranks(ranks: ProcessGroup, *reasons: str) -> list[str]:
    """Of several questions at once, each as :func:`any_rank`."""
    gathered = zip(*ranks.all_gather_object(reasons), strict=True)
    return [next((found for found in answers if found), "") for answers in gathered]


def combine(
    ranks: ProcessGroup, sums: Mapping[str, tuple[float, float]], squares: float, num_tokens: int
) -> tuple[dict[str, tuple[float, float]], float, int]:
    """Metrics as (sum, weight), Σ g² and tokens of all ranks together; every rank gets the same bits."""
    if ranks.size == 1:
        return dict(sums), squares, num_tokens
    parts = ranks.all_gather_object([dict(sums) if ranks.counts else {}, squares, num_tokens if ranks.counts else 0])
    total: dict[str, tuple[float, float]] = {}
    for named, _, _ in parts:
        for name, (value, weight) in named.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = before[0] + value, before[1] + weight
    return total, sum(part[1] for part in parts), sum(part[2] for part in parts)
