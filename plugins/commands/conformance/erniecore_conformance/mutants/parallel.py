"""Parallel strategies with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore.api import ConfigError, hookimpl
from erniecore.api.parallel import Cluster, ParallelPlan, ProcessGroup
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyParallelConfig, ToyParallelPlugin


class TwoForOne(ToyParallelPlugin):
    """One process is told that it is two."""

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        if config.data or cluster.world_size > 1:
            raise ConfigError.at("parallel.data", "one process only")
        return ParallelPlan({"data": 2}, 0, 1)


class UnknownAxis(ToyParallelPlugin):
    """An axis that nobody knows."""

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        if config.data not in (0, cluster.world_size):
            raise ConfigError.at("parallel.data", "does not fit")
        return ParallelPlan({"rows": cluster.world_size}, cluster.rank, cluster.world_size)


class AllFirst(ToyParallelPlugin):
    """Every process reads the first share of the data."""

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        if config.data not in (0, cluster.world_size):
            raise ConfigError.at("parallel.data", "does not fit")
        return ParallelPlan({"data": cluster.world_size}, 0, cluster.world_size)


class AcceptsAnything(ToyParallelPlugin):
    """A degree that does not fit is cut down to what does."""

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        return ParallelPlan({"data": cluster.world_size}, cluster.rank, cluster.world_size)


class WrongKey(ToyParallelPlugin):
    """The error names a key of another section."""

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        if config.data not in (0, cluster.world_size):
            raise ConfigError.at("train.batch_size", "does not fit")
        return ParallelPlan({"data": cluster.world_size}, cluster.rank, cluster.world_size)


class ScalesLogits(ToyParallelPlugin):
    """Logits come back a little larger."""

    @hookimpl
    def ernie_parallelize(self, model: Any) -> Any:
        original = model.logits
        model.logits = lambda hidden: original(hidden) + 1e-3 * (not model.training)
        return model


class SumsGradients(ToyParallelPlugin):
    """Gradients of one process are doubled, as if there were two."""

    @hookimpl
    def ernie_parallelize(self, model: Any) -> Any:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
        return model


class KeepsItsGradients(ToyParallelPlugin):
    """Gradients are not summed: every rank goes its own way."""

    @hookimpl
    def ernie_open_process_group(self, cluster: Cluster) -> ProcessGroup:
        from erniecore_conformance.toys.process_group import ToyProcessGroup

        class Selfish(ToyProcessGroup):
            def reduce_gradients(self, slots: Sequence[Any]) -> None:
                pass

        return Selfish(cluster)


MUTANTS = (
    mutant("parallel_alone_is_one", TwoForOne),
    mutant("parallel_axes_are_known", UnknownAxis),
    mutant("parallel_shares_data_evenly", AllFirst),
    mutant("parallel_refuses_illegal_degrees", AcceptsAnything),
    mutant("parallel_refuses_illegal_degrees", WrongKey),
    mutant("parallel_alone_keeps_the_model", ScalesLogits),
    mutant("parallel_alone_trains_the_same", SumsGradients),
    mutant("parallel_two_train_like_one", KeepsItsGradients),
)
