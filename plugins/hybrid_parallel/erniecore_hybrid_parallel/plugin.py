"""``hybrid``: one run on several processes. Light; groups and sharded layers are made when a run opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Cluster, Layout, ParallelPlan, Plugin, Ranks, hookimpl
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.planning import make_mesh, num_processes

if TYPE_CHECKING:
    from paddle.nn import Layer


class HybridPlugin(Plugin):
    """Data, sharded and tensor parallel training."""

    kind = "parallel"
    name = "hybrid"
    summary = "data, sharded and tensor parallel over several processes"
    Config = HybridConfig

    @hookimpl
    def ernie_count_processes(self, config: HybridConfig) -> int:
        return num_processes(config)

    @hookimpl
    def ernie_plan_parallel(self, config: HybridConfig, cluster: Cluster) -> ParallelPlan:
        mesh = make_mesh(config, cluster.world_size)
        degrees = {**mesh.degrees, "expert": mesh.expert}
        return ParallelPlan(degrees, mesh.data_rank(cluster.rank), mesh.data_size)

    @hookimpl
    def ernie_open_ranks(self, config: HybridConfig, cluster: Cluster) -> Ranks:
        from erniecore_hybrid_parallel.ranks import open_ranks

        return open_ranks(config, make_mesh(config, cluster.world_size), cluster)

    @hookimpl
    def ernie_parallelize(self, model: Layer, layout: Layout, plan: ParallelPlan, ranks: Ranks) -> Layer:
        if plan.degrees["tensor"] > 1:
            ranks.share_matrices(model, layout)  # type: ignore[attr-defined]
        return model


plugin = HybridPlugin()
