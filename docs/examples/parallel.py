"""A strategy for one process; one for several also implements ``ernie_open_process_group`` and ``ernie_count_processes``."""

from typing import Any

from erniecore.api import ConfigError, hookimpl
from erniecore.api.parallel import Cluster, ParallelPlan, ParallelPlugin


class SingleProcess(ParallelPlugin):
    """Every rank has the whole model; there is one rank."""

    name, summary = "alone", "one process"

    @hookimpl
    def ernie_plan_parallel(self, cluster: Cluster) -> ParallelPlan:
        if cluster.world_size > 1:
            raise ConfigError.at("parallel", "alone runs in one process")
        return ParallelPlan({"data": 1})

    @hookimpl
    def ernie_parallelize(self, model: Any) -> Any:
        return model


plugin = SingleProcess()
