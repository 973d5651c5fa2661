"""``single``: one process, the model as it was built. The base line that every other strategy must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.errors import ConfigError
from erniecore.plugin import ParallelPlugin, hookimpl
from erniecore.sections import Section
from erniecore.types.run import Cluster, ParallelPlan

if TYPE_CHECKING:
    from erniecore.types.layouts import LayoutSpace
    from erniecore.types.model import Layer


class SinglePlugin(ParallelPlugin):
    """Runs on one process, without parallelism."""

    name = "single"
    summary = "one process, no parallelism"

    @hookimpl
    def ernie_plan_parallel(self, config: Section, cluster: Cluster) -> ParallelPlan:
        if cluster.world_size > 1:
            raise ConfigError.at(
                "parallel.name",
                f"single runs in one process, not in {cluster.world_size}; choose a strategy such as hybrid",
            )
        return ParallelPlan(degrees={})

    @hookimpl
    def ernie_layout_space(self) -> LayoutSpace:
        from erniecore.builtin.one_process import OneProcess

        return OneProcess()

    @hookimpl
    def ernie_parallelize(self, model: Layer) -> Layer:
        return model


plugin = SinglePlugin()
