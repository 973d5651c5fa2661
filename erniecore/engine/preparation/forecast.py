"""What installed forecasters expect of a run. None is needed: without one, a plan has no forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erniecore import registry
from erniecore.engine.preparation.model import adapter_shapes
from erniecore.host import assemble
from erniecore.plugin import Plugin
from erniecore.types.layouts import LayoutSpace, ParallelLayout
from erniecore.types.planning import Forecast, OptimizerState, Plan, PlannedRun
from erniecore.types.run import Cluster, Device, ParallelPlan
from erniecore.types.shape import DecoderShape

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings
    from erniecore.engine.context import ModelDescription
    from erniecore.host import Host


def describe_run(
    host: Host,
    settings: RunSettings,
    device: Device,
    cluster: Cluster,
    model: ModelDescription,
    parallel_plan: ParallelPlan,
    plan: Plan,
    kernels: Mapping[str, str],
    state: Sequence[OptimizerState],
) -> PlannedRun:
    """A run as forecasters see it, without a reference model.

    Raises:
        ConfigError: the parallel strategy cannot run its layout.
    """
    shape: DecoderShape | None = host.hook.ernie_decoder_shape(architecture=model.architecture)
    space: LayoutSpace | None = None
    if shape is not None:
        space = host.hook.ernie_layout_space(config=settings.parallel, shape=shape)
    tensors = model.state_adapter.maps("pt")
    return PlannedRun(
        names=dict(settings.plugins),
        train=settings.train,
        optimizer=settings.optimizer,
        data=settings.data,
        device=device,
        cluster=cluster,
        plan=plan,
        shape=shape,
        layout=layout_of(space, parallel_plan, cluster),
        layouts=space,
        tensors=tensors,
        adapter=adapter_shapes(host, settings.adapter, tensors),
        kernels=kernels,
        state=state,
        reference=False,
    )


def with_forecast(run: PlannedRun, warn: Callable[[str], None]) -> PlannedRun:
    """The same with the forecast of the first forecaster that has one in its plan."""
    return replace(run, plan=replace(run.plan, forecast=forecast(run, warn)))


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
