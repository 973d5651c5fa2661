"""Running from Python; the command line calls the same functions. Importing this module is light: paddle comes in after the
device has set its environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_system import lifeline
from erniecore_system.files import parse_json

from erniecore import registry
from erniecore.engine.launch import read_cluster
from erniecore.engine.processes.network import node_name
from erniecore.errors import ConfigError, EnvironmentFault, PluginBroken, PluginError
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin
from erniecore.sections import LauncherConfig

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings
    from erniecore.config.settings import RunSettings
    from erniecore.engine.context import Resumption, RunContext
    from erniecore.engine.preparation.unfinished import Choice
    from erniecore.engine.stop import StopRequest
    from erniecore.types.planned_run import PlannedRun
    from erniecore.types.planning import Plan
    from erniecore.types.process_group import ProcessGroup


@dataclass(frozen=True)
class RunResult:
    """What a run left.

    Attributes:
        out: the run directory. metrics: of the last step and, as ``eval/…``, of the last evaluation.
    """

    out: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    first_event: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of this session, read from ``events.jsonl``."""
        from erniecore.engine.preparation.rundir import EVENTS_NAME

        with (self.out / EVENTS_NAME).open("rb") as file:
            file.seek(self.first_event)
            return [parse_json(line) for line in file.read().splitlines() if line.startswith(b"{")]


def run(
    file: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    *,
    console: str = "auto",
    processes: int = 0,
    force: bool = False,
    listeners: Sequence[object] = (),
) -> RunResult:
    """Train as ``ernie run FILE section.key=value …`` does.

    Args:
        file: YAML file of the run, or its sections as a mapping; ``None``: everything from ``overrides``.
        overrides: ``section.key=value``.
        console: ``auto``, ``lines``, ``live``, ``json`` or ``none``.
        processes: on this machine; 0: as many as ``parallel`` needs. Several are started as processes of their own.
        force: start even where the plan needs more memory than is left.
        listeners: objects with lifecycle hooks, called where the run has one process.

    Raises:
        ErnieError: with ``exit_code``, as the command line would end; ``Preempted`` after SIGTERM or SIGINT.
    """
    from erniecore.config.compose import load
    from erniecore.config.values import assignments

    if isinstance(file, Mapping):
        overrides, file = [*assignments(file), *overrides], None
    loaded = load(None if file is None else Path(file), overrides, {}, os.environ)
    return run_loaded(loaded, console=console, processes=processes, force=force, listeners=listeners)


@contextmanager
def _located(loaded: LoadedSettings) -> Iterator[None]:
    """An error in a setting knows its key here; the loaded settings know where that was written."""
    try:
        yield
    except ConfigError as error:
        raise loaded.provenance.located(error) from error


def plan_loaded(loaded: LoadedSettings, *, processes: int = 0) -> Plan:
    """The plan of a run, without starting it (``--dry-run``); no paddle."""
    return _prepared(loaded, processes).plan


def planned_run(loaded: LoadedSettings, *, processes: int = 0) -> PlannedRun:
    """A run as its settings describe it, without starting it; no paddle."""
    from erniecore.engine.preparation.forecast import describe_run

    with _located(loaded):
        return describe_run(_prepared(loaded, processes))


def _prepared(loaded: LoadedSettings, processes: int) -> RunContext:
    from erniecore.engine.preparation.prepare import prepare

    with _located(loaded):
        start = loaded.settings.launcher
        return prepare(loaded, processes=processes or start.nproc * start.nodes)


def run_loaded(
    loaded: LoadedSettings,
    *,
    console: str = "auto",
    processes: int = 0,
    name: str = "",
    note: Callable[[str], None] = lambda text: None,
    launched: bool = False,
    force: bool = False,
    listeners: Sequence[object] = (),
) -> RunResult:
    """Train with settings that are already loaded; see :func:`run`.

    Without ``run.out`` and ``run.name`` this continues the newest unfinished run of the same settings and data in ``runs/``
    that no other process uses, or starts a new one there.

    Args:
        processes: on this machine; 0: as the settings need (``launcher.nproc``, ``parallel``). name: of the run, if it has
            none.
        note: told which run it is, and of each restart. launched: this process is a rank that the run's launcher has started.
        force: start even where the plan needs more memory than is left.
        listeners: objects with lifecycle hooks, beside the callbacks; called where the run has one process, this one.
    """
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.engine.preparation.room import check_room

    if loaded.plugin_files:
        from erniecore import plugin_files

        plugin_files.activate(loaded.plugin_files)
    default, faults = _default_callback(loaded)
    with _located(loaded), loaded.host.listening([*listeners, *default]), ExitStack() as locks:
        if (path := loaded.settings.model.path) and not Path(path).is_dir():
            from erniecore.config.absent_model import require_directory

            require_directory(loaded)
        _fetch_weights(loaded.provenance.get("model.path", ""))
        start = LauncherConfig() if launched else loaded.settings.launcher
        count = processes or start.nproc
        make = partial(prepare, loaded, console=console, processes=count, nodes=start.nodes)
        context = make(name=name) if name else _chosen(loaded.settings, make, locks, note)
        context.device.preflight()
        tight = check_room(context, partial(_plan_with, loaded, processes), force=force)
        if tight:
            note(f"warning: {tight}")
        if context.num_processes > 1 or start.restarts or start.nodes > 1:
            return _run_ranks(context, loaded, note)
        return _run_here(context, partial(write_resolved_file, loaded), [*faults, *loaded.notes])


def _fetch_weights(model: str) -> None:
    """Of a model on a hub, which the settings did not need; ``model``: where ``model.path`` was written."""
    from erniecore.config.hubs import fetch_weights

    fetch_weights(model)


def _plan_with(loaded: LoadedSettings, processes: int, words: Sequence[str]) -> Plan:
    """The plan of the same run with further settings."""
    from erniecore.config.compose import load

    file, overrides, flags, command = loaded.request
    return plan_loaded(load(file, [*overrides, *words], flags, command=command), processes=processes)


def _chosen(
    settings: RunSettings, make: Callable[..., RunContext], locks: ExitStack, note: Callable[[str], None]
) -> RunContext:
    """The run that these settings mean where they name none. It is ours from here on until ``locks`` is closed: of two
    commands that begin together, the second one finds it taken and looks on."""
    if settings.launcher.nodes > 1 or read_cluster(os.environ).world_size > 1:  # several commands are one run
        return make()
    from erniecore.engine.preparation import rundir

    named = bool(settings.run.out or settings.run.name)
    for tries in range(9, -1, -1):
        choice = None if named else _unnamed(settings)
        context = make(name=choice.name if choice else "")
        context.device.preflight()
        try:
            with ExitStack() as taken:
                taken.enter_context(rundir.locked(context.out, "lock-run"))
                if not (choice and tries and choice.outdated()):
                    locks.enter_context(taken.pop_all())
                    break
        except EnvironmentFault as error:
            if named or error.code != "ERN-E011" or not tries:
                raise
    if choice and choice.note:
        note(f"note: {choice.note}")
    return context


def _unnamed(settings: RunSettings) -> Choice:
    """The run that these settings mean where they name none."""
    from erniecore.engine.preparation import unfinished
    from erniecore.engine.preparation.prepare import name_of

    fresh = name_of(settings.run, settings.plugins, shared=False)
    return unfinished.choose(settings.model_dump(mode="json"), fresh)


def _default_callback(loaded: LoadedSettings) -> tuple[list[Plugin], list[str]]:
    """The callback that every run takes along where it is installed, or why not, if it is broken. It is no part of the
    settings: they stay the same on a machine without it."""
    name = str(KINDS["callback"].default)
    chosen = {plugin.name for plugin in loaded.plugins["callback"]}
    if not loaded.settings.log.report or name in chosen or all(e.name != name for e in registry.entries("callback")):
        return [], []
    try:
        return [registry.load("callback", name)], []
    except PluginError as error:
        return [], [f"callback {name} is left out: {error.message}"]


def write_resolved_file(loaded: LoadedSettings, out: Path) -> None:
    """``resolved.yaml`` in the run directory."""
    from erniecore_checkpoint.files import translated

    from erniecore.config.resolved import write_resolved

    with translated(out, "writing resolved.yaml"):
        write_resolved(loaded, out / "resolved.yaml")


def _run_ranks(context: RunContext, loaded: LoadedSettings, note: Callable[[str], None]) -> RunResult:
    """Each rank as a process of its own, started by the run's launcher."""
    from erniecore.engine.preparation import rundir
    from erniecore.engine.processes.job import Launch
    from erniecore.engine.processes.restarts import run_ranks
    from erniecore.types.launcher import Launcher

    launcher = loaded.host.hook.ernie_open_launcher(config=loaded.settings.launcher)
    if not isinstance(launcher, Launcher):
        plugin = loaded.plugins["launcher"]
        message = f"launcher {plugin.name!r} gave a {type(launcher).__name__}"
        raise PluginBroken(message, where=type(plugin).__module__, expected="an erniecore.api.launcher.Launcher")
    first_event = rundir.events_size(context.out)
    launch = Launch(loaded.request, context.out, context.num_processes, context.name, context.console)
    return RunResult(context.out, run_ranks(launcher, launch, note), first_event)


def _run_here(context: RunContext, write_resolved: Callable[[Path], None], notes: Sequence[str]) -> RunResult:
    """Run in this process, which is the only rank or one of several.

    Args:
        write_resolved: writes ``resolved.yaml``. notes: warnings to print at the start.
    """
    from erniecore_checkpoint.files import require_space

    from erniecore.engine import opening
    from erniecore.engine.context import Resumption
    from erniecore.engine.preparation import rundir
    from erniecore.engine.stop import StopRequest

    settings, cluster, device = context.settings, context.cluster, context.device
    stop = StopRequest(context.out / "control" / "stop")
    with stop.listening(), rundir.opened(context.out, cluster.rank):
        rundir.log.info("rank %d of %d on %s", cluster.rank, cluster.world_size, node_name())
        resumption = Resumption()
        if context.is_main:  # the others would see what it has written meanwhile; they hear of it
            fingerprint, resume = (
                context.fingerprint,
                settings.run.resume,
            )  # files are hashed while the rest is prepared
            if resume != "auto" or rundir.used(context.out) or (context.out / "config.json").is_file():
                from erniecore.engine.preparation.changed_files import chosen

                resumption = chosen(context, fingerprint)
            rundir.record_settings(context.out, context.settings_json)
        if resumption.checkpoint is None:
            require_space(context.out, context.plan.checkpoint, "the first checkpoint")
        warnings = [*context.warnings, *opening.open_device(device, cluster, context.kernels), *notes]
        stop.install()
        try:
            ranks = opening.open_process_group(context.host, settings.parallel, context.parallel_plan, cluster, device)
            with closing(ranks):
                resumption = opening.share_choice(ranks, resumption)
                if context.is_main:
                    write_resolved(context.out)
                return _train(context, resumption, ranks, stop, warnings)
        except (MemoryError, OSError, RuntimeError) as error:
            from erniecore.engine.out_of_memory import memory_fault

            expected = context.plan.forecast
            fault = memory_fault(error, device, None if expected is None else expected.peak_memory, settings)
            if fault is None:
                raise
            raise fault from error


def _train(
    context: RunContext, resumption: Resumption, ranks: ProcessGroup, stop: StopRequest, warnings: Sequence[str]
) -> RunResult:
    """The part that needs paddle."""
    from erniecore.engine.preparation.rundir import events_size
    from erniecore.engine.runtime import runtime_changes, runtime_fingerprint
    from erniecore.engine.training.build import announce, build

    first_event = events_size(context.out)
    if resumption.checkpoint is not None:
        now = runtime_fingerprint(context.device, context.kernels)
        resumption = resumption.noting(*runtime_changes(resumption.checkpoint.state, now))
    trainer = build(context, resumption, ranks, stop)
    stop.defer()
    lifeline.save_first()
    trainer.run(partial(announce, trainer, resumption, warnings))
    return RunResult(context.out, trainer.last_metrics, first_event)
