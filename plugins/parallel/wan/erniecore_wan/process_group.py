"""The process group of a site: that of the strategy within it, which all collectives are handed to. What is added is the site's
side of the exchange (``site.py``), which learns of the trained parameters here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api.parallel import Cluster, ParallelPlan, ParameterState, ProcessGroup, ShardSpec, SingleProcess
from erniecore_wan.arrays import AnyArray
from erniecore_wan.config import WanConfig
from erniecore_wan.inner import Inner
from erniecore_wan.site import SiteRounds

if TYPE_CHECKING:
    from paddle import Tensor


class WanProcessGroup:
    """See ``erniecore.api.parallel.ProcessGroup``.

    Attributes:
        inner: of the strategy within the site. site: the exchange with other sites.
    """

    def __init__(self, strategy: Inner, inner: ProcessGroup, config: WanConfig) -> None:
        self.strategy, self.inner, self.site = strategy, inner, SiteRounds(config, inner)
        self.rank, self.size = inner.rank, inner.size
        self.counts, self.replication_factor = inner.counts, inner.replication_factor

    def __deepcopy__(self, memo: dict[int, Any]) -> WanProcessGroup:
        return self

    @property
    def waited(self) -> float:
        return self.inner.waited

    @property
    def waiting(self) -> str:
        return self.inner.waiting or self.site.waiting

    def watch(self, alarm: Callable[[], None]) -> None:
        self.inner.watch(alarm)

    def all_gather_object(self, value: Any) -> list[Any]:
        return self.inner.all_gather_object(value)

    def shard_spec(self, name: str, shape: Sequence[int]) -> ShardSpec:
        return self.inner.shard_spec(name, shape)

    def update_range(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        return self.inner.update_range(name, shape)

    def gather_to_host(self, tensor: Tensor, spec: ShardSpec) -> AnyArray:
        return self.inner.gather_to_host(tensor, spec)

    def gather(self, tensor: Tensor, spec: ShardSpec) -> Tensor:
        return self.inner.gather(tensor, spec)

    def shard_ranks(self, spec: ShardSpec) -> Sequence[int]:
        return self.inner.shard_ranks(spec)

    def broadcast(self, array: AnyArray | None, dtype: str, shape: Sequence[int], source: int) -> AnyArray:
        return self.inner.broadcast(array, dtype, shape, source)

    def attach(self, slots: Sequence[ParameterState]) -> None:
        self.site.attach(slots)
        self.inner.attach(slots)

    def backward_done(self) -> None:
        self.inner.backward_done()

    def reduce_gradients(self, slots: Sequence[ParameterState]) -> None:
        self.inner.reduce_gradients(slots)

    def counts_parameter(self, name: str) -> bool:
        return self.inner.counts_parameter(name)

    def updated(self, slots: Sequence[ParameterState]) -> None:
        self.inner.updated(slots)

    def attach_model(self, model: Any, objective: Any) -> None:
        self.inner.attach_model(model, objective)

    def close(self) -> None:
        self.site.close()
        self.inner.close()


def open_process_group(config: WanConfig, plan: ParallelPlan, cluster: Cluster, device: Any) -> WanProcessGroup:
    """The process group of the strategy within the site, opened, and the exchange of the site."""
    strategy = config.strategy
    inner: ProcessGroup = SingleProcess()
    if strategy.has("ernie_open_process_group"):
        inner = strategy.call("ernie_open_process_group", plan=plan, cluster=cluster, device=device)
    return WanProcessGroup(strategy, inner, config)
