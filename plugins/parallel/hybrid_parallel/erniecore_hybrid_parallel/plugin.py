"""``hybrid``: one run on several processes. Light; groups and sharded layers are made when a run opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api import hookimpl
from erniecore.api.launcher import node_name
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
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.planning import (
    check_accumulation,
    check_shape,
    choose_micro_batches,
    make_mesh,
    num_processes,
)
from erniecore_hybrid_parallel.split import choose_split

if TYPE_CHECKING:
    from paddle.nn import Layer


class HybridPlugin(ParallelPlugin):
    """Training on several processes, along any axes that go together."""

    name = "hybrid"
    summary = "data, sharded, tensor, sequence, expert, context and pipeline parallel over several processes"
    Config = HybridConfig
    capabilities = frozenset({ParallelCapability.EMPTY})

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """``train.accumulation`` says how large a step is."""
        check_accumulation(settings.parallel, settings.train.accumulation)

    @hookimpl
    def ernie_count_processes(self, config: HybridConfig) -> int:
        return num_processes(config)

    @hookimpl
    def ernie_plan_parallel(self, config: HybridConfig, cluster: Cluster, shape: DecoderShape | None) -> ParallelPlan:
        mesh = make_mesh(config, cluster.world_size)
        check_shape(mesh, shape)
        degrees = {**mesh.degrees, "expert": mesh.expert}
        place = mesh.data_rank(cluster.rank), mesh.data_size
        return ParallelPlan(degrees, *place, choose_split(config, shape), choose_micro_batches(config, mesh))

    @hookimpl
    def ernie_layout_space(self, config: HybridConfig, shape: DecoderShape) -> LayoutSpace:
        from erniecore_hybrid_parallel.layouts import HybridLayouts

        return HybridLayouts(config, shape)

    @hookimpl
    def ernie_open_process_group(self, config: HybridConfig, cluster: Cluster) -> ProcessGroup:
        from erniecore_hybrid_parallel.process_group import open_process_group

        return open_process_group(config, make_mesh(config, cluster.world_size), cluster)

    @hookimpl
    def ernie_parallelize(self, model: Layer, layout: Layout, plan: ParallelPlan, ranks: ProcessGroup) -> Layer:
        if ranks.size == 1:
            return model
        weight, transposed, _ = model.head()
        vocabulary = int(weight.shape[0 if transposed else 1])
        stage_3 = plan.degrees["sharding"] > 1 and ranks.config.sharding_stage == 3  # type: ignore[attr-defined]
        if stage_3:
            model = ranks.prepare_parameters(model, layout)  # type: ignore[attr-defined]
        model = ranks.parallelize(model, layout)  # type: ignore[attr-defined]
        if plan.split:
            model = ranks.share_layers(model, layout, plan.split)  # type: ignore[attr-defined]
        if stage_3:
            ranks.share_parameters(model, layout)  # type: ignore[attr-defined]
        return ranks.share_decoding(model, vocabulary)  # type: ignore[attr-defined]

    @hookimpl
    def ernie_run_start(self, run: Any) -> None:
        """Where ranks have other places than their numbers say, event ``places``: the node of each, and its place along each
        axis."""
        if run.settings.parallel.order or run.settings.parallel.ranks:
            mesh, nodes = run.ranks.mesh, run.ranks.all_gather_object(node_name())
            run.emit("places", nodes=nodes, coordinates=[mesh.coordinates(rank) for rank in range(mesh.size)])

    @hookimpl
    def ernie_forward_backward(self, run: Any, batches: Sequence[Batch]) -> StepOutput:
        """A pipeline's own order of passes; without one, the core's."""
        from erniecore.api.training import forward_backward
        from erniecore_hybrid_parallel import pipeline

        passes = forward_backward if run.ranks.pipe is None else pipeline.forward_backward
        if not run.ranks.in_step:
            batches = [batch for batch in batches if batch.num_tokens] or batches[:1]
        run.ranks.begin_step(len(batches))
        with run.ranks.world.faults():
            output = passes(run.objective, batches, run.ranks)
            run.ranks.end_step()
        return output

    @hookimpl
    def ernie_collect_metrics(self, run: Any) -> Mapping[str, float]:
        """Bytes that this rank gave to the others since the last step."""
        return {"bytes_sent": run.ranks.take_sent()} if run.ranks.size > 1 else {}


plugin = HybridPlugin()
