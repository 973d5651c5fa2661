"""Running, loading and exporting from Python; the command line calls the same functions. Importing this module is light:
paddle comes in after the device has set its environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from erniecore.engine.preparation.out_of_memory import memory_fault
from erniecore.engine.processes.nodes import ALONE, Site, machine_name
from erniecore.errors import ConfigError

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded
    from erniecore.engine.preparation.layout_plan import LayoutPlan, Wanted
    from erniecore.engine.preparation.outlook import Outlook
    from erniecore.engine.preparation.plan import Plan
    from erniecore.engine.preparation.prepare import Prepared
    from erniecore.engine.stop import StopRequest
    from erniecore.types import ModelBundle, Tokenizer
    from erniecore.types.model import Layer, Tensor


#: what belongs to the models that ``load_model`` gave out, for ``export``
_bundles: WeakKeyDictionary[Layer, ModelBundle] = WeakKeyDictionary()


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
            return [json.loads(line) for line in file.read().splitlines() if line.startswith(b"{")]


def run(
    file: str | Path | None = None, overrides: Sequence[str] = (), *, console: str = "auto", processes: int = 0
) -> RunResult:
    """Train as ``ernie run FILE section.key=value …`` does.

    Args:
        file: YAML file of the run; ``None``: everything from ``overrides``.
        overrides: ``section.key=value``.
        console: ``auto``, ``lines``, ``live``, ``json`` or ``none``.
        processes: on this machine; 0: as many as ``parallel`` needs. Several are started as processes of their own.

    Raises:
        ErnieError: with ``exit_code``, as the command line would end; ``Preempted`` after SIGTERM or SIGINT.
    """
    import os

    from erniecore.config.compose import load

    loaded = load(None if file is None else Path(file), overrides, {}, os.environ)
    return run_loaded(loaded, console=console, processes=processes)


@contextmanager
def _placed(loaded: Loaded) -> Iterator[None]:
    """What is wrong with a setting is known by its key here; the settings know where that was written."""
    try:
        yield
    except ConfigError as error:
        raise loaded.located(error) from error


def plan_loaded(loaded: Loaded, *, processes: int = 0) -> Plan:
    """The plan of a run, without starting it (``--dry-run``); no paddle."""
    from erniecore.engine.preparation.prepare import prepare

    with _placed(loaded):
        return prepare(loaded, processes=processes).plan


def outlook_loaded(loaded: Loaded, *, processes: int = 0) -> tuple[Plan, Outlook | None]:
    """The plan of a run and what can be estimated beside it (``ernie plan``); no paddle."""
    from erniecore.engine.preparation.outlook import outlook
    from erniecore.engine.preparation.prepare import prepare

    with _placed(loaded):
        ready = prepare(loaded, processes=processes)
        return ready.plan, outlook(ready)


def layouts_loaded(loaded: Loaded, wanted: Wanted, *, processes: int = 0) -> LayoutPlan | None:
    """The layouts of a run over the cards that are wanted (``ernie plan --cards``); no paddle."""
    from erniecore.engine.preparation.layout_plan import layout_plan
    from erniecore.engine.preparation.prepare import prepare

    with _placed(loaded):
        return layout_plan(prepare(loaded, processes=processes), wanted)


def run_loaded(
    loaded: Loaded,
    *,
    console: str = "auto",
    processes: int = 0,
    name: str = "",
    restarts: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    site: Site = ALONE,
    listeners: Sequence[object] = (),
) -> RunResult:
    """Train with settings that are already loaded; see :func:`run`.

    Args:
        processes: on this machine; 0: as the settings need. name: of the run, if it has none.
        restarts: start again so often after failures that may pass; the run is then a process of its own, also alone.
        tell: told of each restart. site: this machine, where the run has several. listeners: objects with lifecycle hooks,
            beside the callbacks; called where the run has one process, this one.
    """
    with _placed(loaded):
        return _run(loaded, console, processes, name, restarts, tell, site, listeners)


def _run(
    loaded: Loaded,
    console: str,
    processes: int,
    name: str,
    restarts: int,
    tell: Callable[[str], None],
    site: Site,
    listeners: Sequence[object],
) -> RunResult:
    from erniecore.engine.preparation import prepare, rundir
    from erniecore.engine.stop import StopRequest
    from erniecore.migration.stand_in import require_directory

    require_directory(loaded)
    ready = prepare.prepare(
        loaded, console=console, processes=processes, name=name, nodes=site.nodes, listeners=listeners
    )
    prepare.preflight(ready)
    if ready.num_processes > 1 or restarts or site.nodes > 1:
        return _run_processes(ready, restarts, tell, site)
    ready.warnings += loaded.notices
    stop = StopRequest(ready.out / "control" / "stop")
    with rundir.opened(ready.out, ready.cluster.rank), stop.listening():
        rundir.log.info("rank %d of %d on %s", ready.cluster.rank, ready.cluster.world_size, machine_name())
        prepare.choose_start(ready)
        prepare.check_disk(ready)
        prepare.open_device(ready)
        stop.install()
        try:
            prepare.open_ranks(ready)
            return _train(ready, stop)
        except (MemoryError, OSError, RuntimeError) as error:
            fault = memory_fault(ready, error)
            if fault is None:
                raise
            raise fault from error
        finally:
            ready.ranks.close()


def _run_processes(ready: Prepared, restarts: int, tell: Callable[[str], None], site: Site) -> RunResult:
    """Each rank as a process of its own."""
    from erniecore.engine.preparation import rundir
    from erniecore.engine.processes import restarts as work

    first_event = rundir.events_size(ready.out)
    metrics = work.run_restarting(ready, restarts, tell, site)
    return RunResult(ready.out, metrics, first_event)


def _train(ready: Prepared, stop: StopRequest) -> RunResult:
    """The part that needs paddle."""
    from erniecore.engine.preparation import rundir
    from erniecore.engine.training import finish, loop, session

    first_event = rundir.events_size(ready.out)
    current = session.build(ready, stop)
    stop.defer()
    with finish.closing(current), current.pulse.watched():
        session.announce(current)
        loop.train(current)
        finish.complete(current)
    return RunResult(ready.out, current.last_metrics, first_event)


def load_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: str = "float32", device: str = "cpu"
) -> Layer:
    """The model of a model directory, a run or a checkpoint, in evaluation mode.

    Args:
        path: with config.json and safetensors of the public layout; or what ``run`` left.
        adapter: a saved adapter that goes onto it; a run that trained one brings its own.
        dtype: of the parameters in memory. device: a device plugin.

    Raises:
        UsageError: there is no model. CheckpointError: damaged or unfitting weights.
    """
    return open_model(path, adapter=adapter, dtype=dtype, device=device).model


def open_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: str = "float32", device: str = "cpu"
) -> ModelBundle:
    """As :func:`load_model`, with everything that belongs to the model: tokenizer, config.json, provenance.

    Args:
        device: a device plugin; empty within a run: the one that is open.
    """
    from erniecore.engine.models.adapters import adapter_directory
    from erniecore.engine.models.bundles import locate, open_device, open_located

    located = locate(Path(path))
    if adapter is not None:
        located = located._replace(adapter=adapter_directory(Path(adapter)))
    if device:
        open_device(device, located.path)
    bundle = open_located(located, dtype=dtype).bundle
    _bundles[bundle.model] = bundle
    return bundle


def load_adapter(model: Layer, path: str | Path, name: str) -> Layer:
    """Add a saved adapter to a model that is loaded, beside those that it has; it is the one in use from here on.

    ``model.set_adapter(name)`` changes to another one, ``model.adapter_names()`` lists them, and within
    ``with model.adapter_off():`` the model is its base.

    Args:
        path: a run, or the directory of an adapter. name: new on this model, without dots.

    Raises:
        UsageError: the name is taken. CheckpointError: damaged or unfitting weights.
    """
    from erniecore.engine.models.adapters import load_adapter as load

    return load(model, Path(path), name)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model directory (or of a run's ``model/``), with the chat template of its model.

    Raises:
        UsageError: there is no model directory. CheckpointError: config.json cannot be read.
        EnvironmentFault: it has no tokenizer.
    """
    from erniecore.engine.models.bundles import locate, open_tokenizer
    from erniecore.errors import UsageError

    located = locate(Path(path))
    if located.is_checkpoint:
        raise UsageError("a checkpoint holds no tokenizer", where=str(path), fix="name the run's model directory")
    return open_tokenizer(located.path)[0]


def generate(model: Layer, input_ids: Any, *, max_new_tokens: int, **options: Any) -> Tensor:
    """New token ids int64 [B, n] that continue ``input_ids``; see ``erniecore.engine.generation.generate.generate``."""
    from erniecore.engine.generation.generate import generate as decode

    return decode(model, input_ids, max_new_tokens=max_new_tokens, **options)


def export(model_or_dir: Layer | str | Path, out: str | Path, to: str = "hf") -> Path:
    """Write a model for others to load; what was written is loaded again and compared.

    Args:
        model_or_dir: a model of :func:`load_model`, or a model, run or checkpoint directory.
        out: a new or empty directory, or an earlier export. to: an exporter plugin.

    Raises:
        CheckpointError: the target is not free, or the export differs from the model.
    """
    from erniecore.engine.exporting.export import export_bundle, export_directory

    if isinstance(model_or_dir, str | Path):
        return export_directory(Path(model_or_dir), Path(out), to).path
    bundle = _bundles.get(model_or_dir)
    if bundle is None:
        from erniecore.errors import UsageError

        raise UsageError("only a model from load_model knows its tokenizer and names", fix="export its directory")
    return export_bundle(bundle, Path(out), to)
