"""What a run decides before paddle is imported: names, place, device, precision, plan, and where it continues. Errors
from here cost the user a second, not a minute. No paddle, no numpy arrays, no data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore import kernels
from erniecore.accelerators.profile import check_needs
from erniecore.checkpoint import load_checkpoint
from erniecore.checkpoint.files import require_space
from erniecore.engine import launch
from erniecore.engine.models import quantized, score_head
from erniecore.engine.preparation import drift, resume
from erniecore.engine.preparation.plan import Parameters, Plan, count_parameters, estimate
from erniecore.engine.preparation.reference import Kind, reference_kind
from erniecore.engine.ranks import Alone, CoreRanks
from erniecore.engine.step import CoreStep
from erniecore.engine.views import check_views
from erniecore.errors import ConfigError
from erniecore.host import Host, assemble
from erniecore.kinds import RUN_KINDS
from erniecore.types import Cluster, Device, Json, Layout, ParallelPlan, Ranks, StateAdapter, TensorMap

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded


@dataclass(eq=False)
class Prepared:
    """The light half of a run.

    Attributes:
        loaded: settings, plugins and where each value came from. host: the plugins, assembled.
        name, out: of the run. console: how it is shown (``auto``, ``lines``, ``live``, ``json``, ``none``).
        resumption: set by :func:`choose_start`. warnings: to be emitted once callbacks listen.
        new_score: the method trains a score head that the model's directory lacks; ``architecture`` and
            ``state_adapter`` have it already.
        num_processes: to be started by this one. ranks: set by :func:`open_ranks`.
        kernels: which implementation each operator runs with.
    """

    loaded: Loaded
    host: Host
    cluster: Cluster
    device: Device
    parallel_plan: ParallelPlan
    architecture: Json
    state_adapter: StateAdapter
    plan: Plan
    name: str
    out: Path
    console: str
    warnings: list[str]
    resumption: resume.Resumption = field(default_factory=resume.Resumption)
    new_score: bool = False
    num_processes: int = 1
    ranks: Ranks = field(default_factory=Alone)
    kernels: kernels.Choice = kernels.REFERENCES

    @property
    def forecast(self) -> tuple[int | None, float | None]:
        """Most bytes that tensors of this rank will hold, and seconds of a step at the rate that training was measured at;
        None where the model does not say what its layers are like, or nothing was measured."""
        from erniecore.engine.preparation.outlook import outlook

        found = outlook(self)
        if found is None:
            return None, None
        if not found.stages:
            return found.tensors, found.expected
        stage = found.stages[self.cluster.rank * len(found.stages) // self.cluster.world_size]
        return stage.tensors, found.expected

    @property
    def settings(self) -> Any:
        """The frozen ``RunSettings``."""
        return self.loaded.settings

    @property
    def names(self) -> dict[str, str]:
        """Kind -> plugin name."""
        return dict(self.settings.plugins)

    @cached_property
    def settings_dump(self) -> dict[str, Any]:
        """The settings as JSON."""
        dump: dict[str, Any] = self.settings.model_dump(mode="json")
        return dump

    @cached_property
    def config_hash(self) -> str:
        """Of the mathematical part of the settings."""
        return drift.config_hash(self.settings_dump)

    @property
    def reference(self) -> Kind:
        """What the method compares the policy with; anything but ``none`` begins as the initial model."""
        return reference_kind(self.loaded)


def prepare(
    loaded: Loaded,
    *,
    console: str = "auto",
    environ: Mapping[str, str] | None = None,
    processes: int = 0,
    name: str = "",
    nodes: int = 1,
    listeners: Sequence[object] = (),
) -> Prepared:
    """Check and plan a run; touches no file of it. With ``num_processes`` above 1: the plan of rank 0, not to be run here.

    Args:
        processes: how many this machine shall start; 0: as many as the parallel strategy needs.
        name: of the run, where the process that started this one has chosen it.
        nodes: machines that start as many each. listeners: further objects with lifecycle hooks.

    Raises:
        ErnieError: impossible settings, an unreadable model directory.
    """
    settings = loaded.settings
    host = assemble(loaded.plugins, extra=[CoreStep(), CoreRanks(), *listeners])
    cluster, num_processes = place_of(host, settings, os.environ if environ is None else environ, processes, nodes)
    device: Device = host.hook.ernie_open_device(config=settings.device, cluster=cluster)
    check_train(settings, device)
    check_abilities(loaded, device)
    chosen = kernels.choose(device.name, getattr(settings.device, "kernels", {}))
    architecture, adapter, new_score = described(loaded, host)
    parallel_plan = plan_parallel(loaded, host, cluster, architecture)
    name = settings.run.name or name or name_of(settings, shared=cluster.world_size > 1 == num_processes)
    parameters = counted(loaded, host, architecture, adapter)
    return Prepared(
        loaded=loaded,
        host=host,
        cluster=cluster,
        device=device,
        parallel_plan=parallel_plan,
        architecture=architecture,
        state_adapter=adapter,
        plan=planned(loaded, parameters, name, parallel_plan.data_size),
        name=name,
        out=Path(settings.run.out or f"runs/{name}"),
        console=console,
        warnings=[*(device.remarks() if hasattr(device, "remarks") else []), *chosen.remarks],
        new_score=new_score,
        num_processes=num_processes,
        kernels=chosen,
    )


def plan_parallel(loaded: Loaded, host: Host, cluster: Cluster, architecture: Json) -> ParallelPlan:
    """The strategy's plan. Raises ``ConfigError`` for what it cannot divide, the run's adapter included."""
    plan: ParallelPlan = host.hook.ernie_plan_parallel(
        config=loaded.settings.parallel,
        cluster=cluster,
        shape=host.hook.ernie_decoder_shape(architecture=architecture),
    )
    if loaded.settings.adapter is not None:
        model_layout(loaded, host, architecture, plan)
    return plan


def model_layout(loaded: Loaded, host: Host, architecture: Json, plan: ParallelPlan) -> Layout:
    """The layout of the model, and of its adapter where weights are cut.

    Raises:
        ConfigError: the adapter cannot be cut.
    """
    adapter = loaded.settings.adapter
    layout: Layout = host.hook.ernie_model_layout(architecture=architecture)
    cutting = [axis for axis in ("tensor", "expert") if plan.degrees.get(axis, 1) > 1]
    if adapter is None or not cutting:
        return layout
    extended: Layout | None = host.hook.ernie_adapter_layout(config=adapter, layout=layout)
    if extended is None:
        name = loaded.settings.plugins["adapter"]
        raise ConfigError.at(f"parallel.{cutting[0]}", f"adapter {name} does not say how it is cut")
    return extended


def place_of(
    host: Host, settings: Any, environ: Mapping[str, str], processes: int, nodes: int = 1
) -> tuple[Cluster, int]:
    """This process among those of the run, and how many it is to start: 1 where a launcher started it."""
    cluster = launch.read_cluster(environ)
    if cluster.world_size > 1:
        if nodes > 1:
            raise ConfigError.at("--nodes", "this process was started by a launcher, which has placed it already")
        return cluster, 1
    count = processes * nodes or host.hook.ernie_count_processes(config=settings.parallel)
    if count % nodes:
        raise ConfigError.at(
            "--nodes", f"`parallel` makes {count} processes, which {nodes} machines cannot share evenly"
        )
    return replace(cluster, world_size=count, num_nodes=nodes), count // nodes


def described(loaded: Loaded, host: Host) -> tuple[Json, StateAdapter, bool]:
    """Architecture and names of the weights, with a score head if the run trains one; whether that is new."""
    architecture: Json = host.hook.ernie_read_architecture(config=loaded.settings.model)
    quantized.refuse_training(architecture)
    adapter: StateAdapter = host.hook.ernie_state_adapter(architecture=architecture)
    new_score = wants_score(loaded) and not score_head.has_score(architecture)
    architecture = score_head.with_score(architecture) if new_score else architecture
    return architecture, score_head.state_with_score(adapter, architecture), new_score


def planned(loaded: Loaded, parameters: Parameters, name: str, data_size: int) -> Plan:
    """The plan of the run."""
    settings = loaded.settings
    return estimate(
        parameters,
        settings,
        dict(settings.plugins),
        name=name,
        data_size=data_size,
        reference=reference_kind(loaded) == "copy",
        moving=bool(getattr(settings.method, "reference_update_steps", 0)),
    )


def name_of(settings: Any, *, shared: bool) -> str:
    """A name for a run that has none, from the clock; raises ``ConfigError`` where each rank would find another one."""
    if shared and not settings.run.out:
        raise ConfigError.at("run.out", "several processes write into one directory: name it")
    return f"{datetime.now():%Y%m%d-%H%M%S}-{settings.plugins['method']}-{settings.plugins['model']}"


def wants_score(loaded: Loaded) -> bool:
    """Whether the method trains a score head."""
    return score_head.CAPABILITY in loaded.plugins["method"].capabilities


def counted(loaded: Loaded, host: Host, architecture: Json, adapter: StateAdapter) -> Parameters:
    """Parameters of the run; under an adapter a score head is trained beside it."""
    config = loaded.settings.adapter
    if config is None or not wants_score(loaded):
        maps = adapter.maps("pt")
        return count_parameters(maps, adapter_shapes(host, config, maps), packed_bytes(loaded, host, maps))
    maps = score_head.without_head(adapter).maps("pt")
    found = adapter_shapes(host, config, maps) or {}
    trained = score_head.trained_beside(found, architecture)
    return count_parameters(maps, trained, packed_bytes(loaded, host, maps))


def adapter_shapes(host: Host, config: Any, maps: Sequence[TensorMap]) -> Mapping[str, Sequence[int]] | None:
    """Name -> shape of what the run's adapter trains; None without one, nothing if its plugin does not say."""
    if config is None:
        return None
    shapes = {entry.name: entry.shape for entry in maps}
    found: Mapping[str, Sequence[int]] | None = host.hook.ernie_adapter_shapes(config=config, shapes=shapes)
    return found or {}


def packed_bytes(loaded: Loaded, host: Host, maps: Sequence[TensorMap]) -> Mapping[str, int]:
    """Name -> bytes of what the run's quantizer packs; empty without one, or if its plugin does not say."""
    config = loaded.settings.quantizer
    if config is None:
        return {}
    shapes = {entry.name: entry.shape for entry in maps}
    found: Mapping[str, int] | None = host.hook.ernie_packed_bytes(config=config, shapes=shapes)
    return found or {}


def check_train(settings: Any, device: Device) -> None:
    """Combinations that validation of single keys cannot see.

    Raises:
        ConfigError: repeatable results or a precision that the device lacks; a warm-up that the schedule ignores; loss scaling.
    """
    train = settings.train
    if settings.run.deterministic and not device.deterministic:
        message = (
            f"device {device.name} does not repeat its results bit for bit; set it to false, or choose another device"
        )
        raise ConfigError.at("run.deterministic", message)
    if train.precision not in device.dtypes:
        known = ", ".join(sorted(device.dtypes))
        raise ConfigError.at("train.precision", f"device {device.name} has no {train.precision}; it has {known}")
    if train.optimizer_offload:
        lacks = getattr(device, "lacks", {}).get("host-offload", "")
        if lacks:
            raise ConfigError.at("train.optimizer_offload", f"not on device {device.name}: {lacks}")
    if train.precision == "float16":
        raise ConfigError.at("train.precision", "float16 needs loss scaling, which is not available; use bfloat16")
    if train.schedule == "constant" and (train.warmup_steps or train.warmup_ratio):
        raise ConfigError.at("train.schedule", "constant has no warm-up; use constant-with-warmup")
    if train.min_lr > train.learning_rate:
        raise ConfigError.at("train.min_lr", f"above train.learning_rate ({train.learning_rate})")


def check_abilities(loaded: Loaded, device: Device) -> None:
    """Refuse what the device cannot do.

    Raises:
        ConfigError: a plugin of the run needs an ability that the device lacks; says what to do without it.
    """
    for kind in RUN_KINDS:
        plugin = loaded.plugins.get(kind)
        if plugin is not None:
            check_needs(kind, loaded.settings.plugins[kind], getattr(plugin, "needs", ()), device)


def preflight(ready: Prepared) -> None:
    """Raises ``DeviceUnavailable`` when it is plain from what is installed that the device cannot be opened."""
    check = getattr(ready.device, "preflight", None)
    if check is not None:
        check()


def choose_start(ready: Prepared) -> None:
    """Decide where the run continues; the run directory must exist and be ours. Rank 0 decides for all: the others
    would see what it has written meanwhile; they hear of it in :func:`open_ranks`."""
    if ready.cluster.rank == 0:
        ready.resumption = resume.choose(
            ready.out,
            ready.settings.run.resume,
            ready.settings_dump,
            ready.config_hash,
            ready.parallel_plan.data_size,
        )


def circumstances(ready: Prepared) -> dict[str, str]:
    """What chooses kernels and splits sums in this process, and with that the last bits: the device's variables as they
    are in force, the processor or card, the number of threads."""
    variables = {name: os.environ.get(name, "") for name in ready.device.environment()}
    variables["kernels"] = kernels.described(ready.kernels)
    return {**variables, **{k: v for k, v in ready.device.describe().items() if k != "memory"}}


def note_circumstances(ready: Prepared) -> None:
    """Say so when a run continues under other circumstances than it was saved under."""
    checkpoint = ready.resumption.checkpoint
    if checkpoint is None:
        return
    before, now = checkpoint.state.get("circumstances", {}), circumstances(ready)
    changed = [f"{k}: {before.get(k)} -> {now.get(k)}" for k in sorted({*before, *now}) if before.get(k) != now.get(k)]
    if changed:
        note = f"continues, but not to the last bits: {', '.join(changed)}"
        ready.resumption = replace(ready.resumption, notes=(*ready.resumption.notes, note))


def check_disk(ready: Prepared) -> None:
    """Raises ``CheckpointError`` before anything is trained if not even one checkpoint fits on the disk."""
    if ready.resumption.checkpoint is None:
        require_space(ready.out, ready.plan.checkpoint, "the first checkpoint")


def open_device(ready: Prepared) -> None:
    """Set the device's environment and import paddle."""
    wanted = {**launch.paddle_variables(ready.cluster), **ready.device.environment()}
    kept = launch.paddle_variables(ready.cluster).keys() & os.environ.keys()  # a launcher's own names for its ranks
    ready.warnings += launch.apply_environment({k: v for k, v in wanted.items() if k not in kept})
    ready.device.open()
    check_views(ready.device.name)
    launch.use_kernels(ready.kernels, ready.warnings)


def open_ranks(ready: Prepared) -> None:
    """Meet the other processes, and continue where rank 0 does. Raises ``EnvironmentFault`` if they do not come."""
    ready.ranks = ready.host.hook.ernie_open_ranks(
        config=ready.settings.parallel, plan=ready.parallel_plan, cluster=ready.cluster, device=ready.device
    )
    found = ready.resumption.checkpoint
    path = ready.ranks.exchange("" if found is None else str(found.path.resolve()))[0]
    if path and found is None:
        ready.resumption = resume.Resumption(load_checkpoint(Path(path), verify=False))  # rank 0 has read every byte
    note_circumstances(ready)
