"""What installed forecasters expect of a run. None is needed: without one, a plan has no forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erniecore import registry
from erniecore.engine.preparation.model import adapter_shapes, trained_maps
from erniecore.host import assemble
from erniecore.plugin import Plugin
from erniecore.types.layouts import LayoutSpace, ParallelLayout
from erniecore.types.planned_run import PlannedRun
from erniecore.types.planning import Forecast
from erniecore.types.run import Cluster, ParallelPlan
from erniecore.types.shape import DecoderShape

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext


def describe_run(context: RunContext) -> PlannedRun:
    """A run as forecasters see it.

    Raises:
        ConfigError: the parallel strategy cannot run its layout.
    """
    host, settings, model = context.host, context.settings, context.model
    shape: DecoderShape | None = host.hook.ernie_decoder_shape(architecture=model.architecture)
    space: LayoutSpace | None = None
    if shape is not None:
        space = host.hook.ernie_layout_space(config=settings.parallel, shape=shape)
    tensors = trained_maps(model.state_adapter, context.settings)
    return PlannedRun(
        names=context.names,
        train=settings.train,
        optimizer=settings.optimizer,
        data=settings.data,
        device=context.device,
        cluster=context.cluster,
        plan=context.plan,
        shape=shape,
        layout=layout_of(space, context.parallel_plan, context.cluster),
        layouts=space,
        tensors=tensors,
        adapter=adapter_shapes(host, settings.adapter, tensors),
        kernels=context.kernels.names,
        state=context.optimizer_state,
        reference=context.reference != "none",
        generates=any(plugin.generates for plugin in host.plugins),
    )


def with_forecast(context: RunContext) -> RunContext:
    """The same with the forecast of the first forecaster that has one in its plan. Raises what :func:`describe_run` raises."""
    warnings = [*context.warnings]
    found = forecast(describe_run(context), warnings.append)
    return replace(context, plan=replace(context.plan, forecast=found), warnings=tuple(warnings))


def forecast(run: PlannedRun, warn: Callable[[str], None]) -> Forecast | None:
    """The first answer of an installed forecaster, by name; None where none has one. A forecaster that fails is told by
    ``warn``: a run does not end because nobody knows how long it takes."""
    for plugin in registry.loadable("forecaster"):
        try:
            found = ask(plugin, run)
        except Exception as error:
            warn(f"no forecast: forecaster {plugin.name} failed with {type(error).__name__}: {error}")
            continue
        if found is not None:
            return found
    return None


def ask(plugin: Plugin, run: PlannedRun) -> Forecast | None:
    """One forecaster's answer. Raises ``PluginBroken`` for hooks that are wrong, and whatever the plugin raises."""
    found: Forecast | None = assemble({"forecaster": plugin}).hook.ernie_forecast(run=run)
    return found


def layout_of(space: LayoutSpace | None, plan: ParallelPlan, cluster: Cluster) -> ParallelLayout:
    """The layout of a run: what its strategy says of it, or else the degrees of its plan.

    Raises:
        ConfigError: the strategy cannot run it.
    """
    if space is not None:
        return space.selected(cluster.world_size)
    degrees: dict[str, Any] = {axis: plan.degrees.get(axis, 1) for axis in ParallelLayout().degrees}
    return ParallelLayout(**degrees, split=plan.split)


def layout_spaces(shape: DecoderShape) -> Iterator[tuple[str, LayoutSpace]]:
    """(strategy, what it can run of such a model with its default settings) of every installed strategy that says it."""
    for plugin in registry.loadable("parallel"):
        hook = assemble({"parallel": plugin}).hook
        space: LayoutSpace | None = hook.ernie_layout_space(config=plugin.Config(), shape=shape)
        if space is not None:
            yield plugin.name, space
