"""From loaded settings to the context of a run: its place, device, model, plan. All of it before paddle is imported, so that
an error costs the user a second, not a minute. Touches no file of the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore import kernels, registry
from erniecore.engine import launch
from erniecore.engine.context import ModelDescription, RunContext
from erniecore.engine.preparation.checks import check_abilities, check_offload, check_repeatable, check_train
from erniecore.engine.preparation.model import count_model, model_layout, plan_parallel, read_model
from erniecore.engine.preparation.plan import estimate
from erniecore.engine.preparation.reference import reference_kind
from erniecore.engine.process_group import CoreProcessGroup
from erniecore.engine.step import CoreStep
from erniecore.errors import ConfigError
from erniecore.types.planning import OptimizerState, Parameters, Plan
from erniecore.types.run import Cluster, Device, ParallelPlan

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings
    from erniecore.config.core import RunSection
    from erniecore.config.settings import RunSettings
    from erniecore.engine.preparation.reference import ReferenceKind
    from erniecore.host import Host
    from erniecore.plugin import Plugin
    from erniecore.sections import ParallelConfig


def prepare(
    loaded: LoadedSettings,
    *,
    console: str = "auto",
    environ: Mapping[str, str] | None = None,
    processes: int = 0,
    name: str = "",
    nodes: int = 1,
) -> RunContext:
    """Check and plan a run. With ``num_processes`` above 1: the context of rank 0, not to be trained here.

    Args:
        processes: how many this machine shall start; 0: as many as the parallel strategy needs.
        name: of the run, where the process that started this one has chosen it.
        nodes: machines that start as many each.

    Raises:
        ErnieError: impossible settings, an unreadable model directory.
    """
    settings, plugins, host = loaded.settings, loaded.plugins, loaded.host
    host.provide(core_step=CoreStep(), core_ranks=CoreProcessGroup())
    variables = os.environ if environ is None else environ
    cluster, num_processes = place_of(host, settings.parallel, variables, processes, nodes)
    device = device_of(host, settings, plugins, cluster)
    choice = kernels.choose(device.name, settings.device.kernels, settings.train.matmul_precision)
    model, parallel_plan = describe(host, settings, cluster, plugins["method"])
    shared = cluster.world_size > 1 == num_processes
    name = settings.run.name or name or name_of(settings.run, settings.plugins, shared=shared)
    parameters, state = count_model(host, model, settings)
    reference = reference_kind(settings.method, settings.adapter, plugins["method"].capabilities)
    plan = plan_of(parameters, state, settings, name, parallel_plan, reference)
    context = RunContext(
        name=name,
        out=Path(settings.run.out or f"runs/{name}"),
        console=console,
        settings=settings,
        plugins=plugins,
        host=host,
        cluster=cluster,
        num_processes=num_processes,
        device=device,
        kernels=choice,
        model=model,
        parallel_plan=parallel_plan,
        plan=plan,
        optimizer_state=state,
        reference=reference,
        warnings=(*device.warnings(), *choice.warnings),
    )
    return _forecast(context)


def _forecast(context: RunContext) -> RunContext:
    """The same with a forecast, where a forecaster is installed. One process has one layout; that several have one which the
    strategy can run is checked on the way, by :func:`describe_run`."""
    if context.cluster.world_size == 1 and not registry.entries("forecaster"):
        return context
    from erniecore.engine.preparation.forecast import with_forecast

    return with_forecast(context)


def device_of(host: Host, settings: RunSettings, plugins: Mapping[str, Any], cluster: Cluster) -> Device:
    """The device of the run, not open yet. Raises ``ConfigError`` for what it cannot do."""
    device: Device = host.hook.ernie_open_device(config=settings.device, cluster=cluster)
    check_repeatable(device, settings.run.deterministic)
    check_train(settings.train, device)
    check_offload(settings.optimizer, device)
    check_abilities(plugins, settings.plugins, device)
    return device


def describe(
    host: Host, settings: RunSettings, cluster: Cluster, method: Plugin
) -> tuple[ModelDescription, ParallelPlan]:
    """The model of the run, and how its processes divide it."""
    architecture, state_adapter, head = read_model(host, settings.model, method, settings.quantizer)
    plan = plan_parallel(host, settings.parallel, cluster, architecture)
    layout = model_layout(host, architecture, head, settings.adapter, settings.plugins.get("adapter", ""), plan)
    return ModelDescription(architecture, state_adapter, layout, head), plan


def place_of(
    host: Host, parallel: ParallelConfig, environ: Mapping[str, str], processes: int, nodes: int = 1
) -> tuple[Cluster, int]:
    """This process among those of the run, and how many it is to start: 1 where a launcher started it."""
    cluster = launch.read_cluster(environ)
    if cluster.world_size > 1:
        if nodes > 1:
            raise ConfigError.at(
                "launcher.nodes", "this process was started by a launcher, which has placed it already"
            )
        return cluster, 1
    count = processes * nodes or host.hook.ernie_count_processes(config=parallel)
    if count % nodes:
        raise ConfigError.at(
            "launcher.nodes", f"`parallel` makes {count} processes, which {nodes} nodes cannot share evenly"
        )
    return replace(cluster, world_size=count, num_nodes=nodes), count // nodes


def name_of(run: RunSection, plugins: Mapping[str, str], *, shared: bool) -> str:
    """A name for a run that has none, from the clock; raises ``ConfigError`` where each rank would find another one."""
    if shared and not run.out:
        raise ConfigError.at("run.out", "several processes write into one directory: name it")
    return f"{datetime.now():%Y%m%d-%H%M%S}-{plugins['method']}-{plugins['model']}"


def plan_of(
    parameters: Parameters,
    state: Sequence[OptimizerState],
    settings: RunSettings,
    name: str,
    parallel_plan: ParallelPlan,
    reference: ReferenceKind,
) -> Plan:
    """Sizes of the run. ``state``: of each trained parameter."""
    return estimate(
        parameters,
        settings.train,
        settings.plugins,
        state=[one.size for one in state],
        offload=settings.optimizer.offload,
        name=name,
        rows_per_step=settings.train.batch_size * parallel_plan.micro_batches(settings.train.accumulation),
        max_seq_len=settings.data.max_seq_len,
        keep=settings.checkpoint.keep,
        reference=reference == "copy",
        moving=settings.method.reference_use().update_steps > 0,
    )
