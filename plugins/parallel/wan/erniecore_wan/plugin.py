"""``wan``: a run that is one of several sites. Within the site another strategy trains; every so many steps the sites exchange
what they have learned. Light; connections and state are made when a run opens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api import hookimpl
from erniecore.api.parallel import (
    Batch,
    Cluster,
    DecoderShape,
    Layout,
    ParallelCapability,
    ParallelPlan,
    ParallelPlugin,
    ProcessGroup,
    StepOutput,
)
from erniecore.api.planning import LayoutSpace
from erniecore_wan.config import WanConfig
from erniecore_wan.inner import InnerRun

if TYPE_CHECKING:
    from paddle.nn import Layer


class WanPlugin(ParallelPlugin):
    """Training at several sites that are joined by slow links."""

    name = "wan"
    summary = "one of several sites that train one model over slow links, each by a strategy of its own"
    Config = WanConfig
    capabilities = frozenset({ParallelCapability.EMPTY})

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        config: WanConfig = settings.parallel
        config.check()
        inner = config.strategy
        if inner.has("ernie_check_settings"):
            seen = settings.model_copy(update={"parallel": inner.config})  # the settings as the strategy knows them
            inner.call("ernie_check_settings", settings=seen)

    @hookimpl
    def ernie_count_processes(self, config: WanConfig) -> int:
        inner = config.strategy
        return int(inner.call("ernie_count_processes")) if inner.has("ernie_count_processes") else 1

    @hookimpl
    def ernie_plan_parallel(self, config: WanConfig, cluster: Cluster, shape: DecoderShape | None) -> ParallelPlan:
        plan: ParallelPlan = config.strategy.call("ernie_plan_parallel", cluster=cluster, shape=shape)
        return plan

    @hookimpl
    def ernie_layout_space(self, config: WanConfig, shape: DecoderShape) -> LayoutSpace | None:
        inner = config.strategy
        return inner.call("ernie_layout_space", shape=shape) if inner.has("ernie_layout_space") else None

    @hookimpl
    def ernie_open_process_group(
        self, config: WanConfig, plan: ParallelPlan, cluster: Cluster, device: Any
    ) -> ProcessGroup:
        from erniecore_wan.process_group import open_process_group

        return open_process_group(config, plan, cluster, device)

    @hookimpl
    def ernie_parallelize(self, model: Layer, layout: Layout, plan: ParallelPlan, ranks: ProcessGroup) -> Layer:
        from erniecore_wan.process_group import WanProcessGroup

        if not isinstance(ranks, WanProcessGroup):  # nothing was opened: one process that belongs to no site
            return model
        arguments = {"model": model, "layout": layout, "plan": plan, "ranks": ranks.inner}
        return ranks.strategy.call("ernie_parallelize", **arguments)

    @hookimpl
    def ernie_forward_backward(self, run: Any, batches: Sequence[Batch]) -> StepOutput:
        """That of the strategy within the site; without one, the core's."""
        from erniecore.api.training import forward_backward
        from erniecore_wan.process_group import WanProcessGroup

        if not isinstance(run.ranks, WanProcessGroup):
            return forward_backward(run.objective, batches, run.ranks)
        inner = run.ranks.inner
        if run.ranks.strategy.has("ernie_forward_backward"):
            seen = InnerRun(run.objective, inner)
            found: StepOutput = run.ranks.strategy.call("ernie_forward_backward", run=seen, batches=batches)
            return found
        return forward_backward(run.objective, batches, inner)

    @hookimpl
    def ernie_run_start(self, run: Any) -> None:
        run.ranks.site.start(run)

    @hookimpl
    def ernie_step_start(self, run: Any, step: int) -> None:
        run.ranks.site.before_step(run, step)

    @hookimpl
    def ernie_collect_metrics(self, run: Any) -> Mapping[str, float]:
        """Those of the strategy, and the bytes that this site has sent to and fetched from the coordinator in all."""
        found: dict[str, float] = {}
        if run.ranks.strategy.has("ernie_collect_metrics"):
            found |= run.ranks.strategy.call("ernie_collect_metrics", run=InnerRun(run.objective, run.ranks.inner))
        return {**found, **run.ranks.site.metrics()}

    @hookimpl
    def ernie_step_end(self, run: Any, step: int, metrics: Mapping[str, float]) -> None:
        run.ranks.site.after_step(run, step, metrics)

    @hookimpl
    def ernie_run_end(self, run: Any, error: BaseException | None) -> None:
        run.ranks.site.end(finished=error is None)


plugin = WanPlugin()
