"""Hooks of parallel strategies. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.layouts import LayoutSpace
    from erniecore.types.model import Layer, Layout
    from erniecore.types.process_group import ProcessGroup
    from erniecore.types.run import Cluster, Device, ParallelPlan
    from erniecore.types.shape import DecoderShape


class ParallelHooks:
    """One provider: the strategy of the run. Called once per run and rank."""

    @hookspec(firstresult=True)
    def ernie_plan_parallel(self, config: Section, cluster: Cluster, shape: DecoderShape | None) -> ParallelPlan:
        """Degrees and this rank's place, without paddle; ``shape`` if the model says it. May raise ``ConfigError``.

        Example::

            @hookimpl
            def ernie_plan_parallel(self, config, cluster):
                return ParallelPlan({"data": cluster.world_size}, cluster.rank, cluster.world_size)
        """

    @hookspec(firstresult=True)
    def ernie_layout_space(self, config: Section, shape: DecoderShape) -> LayoutSpace:
        """The layouts that this strategy can run of a model of that ``shape``, and how it splits its layers into stages; for
        plans and for searches over layouts. No paddle. Optional: without it a planner knows the degrees of the run alone.

        Example::

            @hookimpl
            def ernie_layout_space(self, config, shape):
                return MyLayouts(config, shape)
        """

    @hookspec(firstresult=True)
    def ernie_count_processes(self, config: Section) -> int:
        """How many processes these degrees need; before paddle is imported, once, in the process that starts them.
        Optional: the core's answer is 1.

        Example::

            @hookimpl
            def ernie_count_processes(self, config):
                return config.data
        """

    @hookspec(firstresult=True)
    def ernie_open_process_group(
        self, config: Section, plan: ParallelPlan, cluster: Cluster, device: Device
    ) -> ProcessGroup:
        """What the processes do together; once on every rank, after the device is open. Needed by a strategy that plans
        for several processes. Raises ``EnvironmentFault`` when they do not find each other.

        Example::

            @hookimpl
            def ernie_open_process_group(self, config, plan, cluster):
                from mypackage.group import MyProcessGroup
                return MyProcessGroup(config, plan, cluster)
        """

    @hookspec(firstresult=True)
    def ernie_parallelize(self, model: Layer, layout: Layout, plan: ParallelPlan, ranks: ProcessGroup) -> Layer:
        """Apply the plan to a built, adapted and quantized model; after weights are loaded, before the optimizer.
        ``ranks``: what ``ernie_open_process_group`` gave. With the capability ``empty`` parameters may have no values yet,
        see ``erniecore.api.layers.keep_part``.

        Example::

            @hookimpl
            def ernie_parallelize(self, model):
                return model
        """
