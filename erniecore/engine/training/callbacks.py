"""What a run tells to others: events, metrics and lifecycle hooks. Callbacks see the run as a ``RunView``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.files import translated

from erniecore.engine.preparation.rundir import log, log_fault
from erniecore.errors import PluginBroken
from erniecore.types.process_group import ProcessGroup
from erniecore.types.run import Evaluation, Objective, ParallelPlan

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings
    from erniecore.engine.context import RunContext
    from erniecore.engine.training.state import TrainState
    from erniecore.host import Host
    from erniecore.types.model import Layer
    from erniecore.types.text import Tokenizer


class View:
    """The ``RunView`` of a run: read-only attributes, and ``emit``."""

    def __init__(
        self, context: RunContext, state: TrainState, ranks: ProcessGroup, total_steps: int, tokenizer: Tokenizer
    ) -> None:
        self._settings, self._out, self._host = context.settings, context.out, context.host
        self._parallel_plan, self._tokenizer = context.parallel_plan, tokenizer
        #: why the run is to stop, asked of all ranks; set by the trainer
        self.stopping: Callable[[], str] = str
        self._console, self._state, self._ranks, self._total_steps = context.console, state, ranks, total_steps
        #: copies the state of all ranks; set by the trainer
        self.copying: Callable[[Path], Mapping[str, Any]] = lambda directory: {}
        #: why a callback on this rank wants training to end; empty: none does
        self.asked = ""

    @property
    def out(self) -> Path:
        """Directory of the run."""
        return self._out

    @property
    def settings(self) -> RunSettings:
        """The frozen settings of the run."""
        return self._settings

    @property
    def console(self) -> str:
        """How the run is shown: ``auto``, ``live``, ``lines``, ``json`` or ``none``."""
        return self._console

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._ranks.rank == 0

    @property
    def ranks(self) -> ProcessGroup:
        """The process group of the run."""
        return self._ranks

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self._total_steps

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model, with its chat template."""
        return self._tokenizer

    @property
    def parallel_plan(self) -> ParallelPlan:
        """How ranks share the run."""
        return self._parallel_plan

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self._state.step

    @property
    def model(self) -> Layer:
        """What is trained, as the parallel strategy made it."""
        return self._state.model

    @property
    def objective(self) -> Objective:
        """The loss of the method."""
        return self._state.objective

    def copy_state(self, directory: Path) -> Mapping[str, Any]:
        """Write this rank's files of a checkpoint of the present step into ``directory``."""
        return self.copying(directory)

    def request_stop(self, reason: str) -> None:
        """Training ends after this step, as after its last one; the first reason counts. Raises ``ValueError`` without one."""
        if not reason.strip():
            raise ValueError("request_stop needs a reason")
        self.asked = self.asked or reason

    def emit(self, event: str, **fields: object) -> None:
        """One event to every callback that shows events, and to the log; main rank only."""
        if not self.is_main:
            return
        full = {"event": event, "time": time.time(), **fields}
        if event != "step":
            log.info("%s %s", event, {k: v for k, v in fields.items() if k != "plan"})
        with translated(self._out, "writing an event", "checkpoints are untouched"):
            self._host.hook.ernie_event(run=self, event=full)
        if fault := log_fault():
            self.emit("warning", kind="log", message=fault)


class Callbacks:
    """Calls the lifecycle hooks of a run's plugins and callbacks with its view."""

    def __init__(self, host: Host, view: View) -> None:
        self._hook, self._host, self.view = host.hook, host, view
        #: plugins that measure more than the loss
        found = {implementation.plugin for implementation in host.implementations("ernie_evaluate")}
        self.evaluators = [plugin for plugin in host.plugins if plugin in found]

    def emit(self, event: str, **fields: object) -> None:
        """Emit an event through the run view."""
        self.view.emit(event, **fields)

    def warn(self, kind: str, **fields: object) -> None:
        """Emit a ``warning`` event of this kind."""
        self.emit("warning", kind=kind, **fields)

    def run_start(self) -> None:
        """Everything is built; the first step comes next."""
        self._hook.ernie_run_start(run=self.view)

    def run_end(self, error: BaseException | None) -> None:
        """The last call of a run."""
        self._hook.ernie_run_end(run=self.view, error=error)

    def step_start(self, step: int) -> None:
        """Before optimizer step ``step`` (1-based)."""
        self._hook.ernie_step_start(run=self.view, step=step)

    def collect_metrics(self, step: int) -> dict[str, float]:
        """What plugins measured in this step."""
        found: dict[str, float] = {}
        for more in self._hook.ernie_collect_metrics(run=self.view, step=step):
            found.update(more or {})
        return found

    def evaluate(self, step: int) -> Evaluation:
        """What plugins measured, together; an ``evaluation`` event each. Raises ``PluginBroken`` for a metric that two have."""
        metrics: dict[str, float] = {}
        lower: frozenset[str] = frozenset()
        for plugin in self.evaluators:
            started = time.perf_counter()
            found = self._host.call(plugin, "ernie_evaluate", run=self.view, step=step)
            if found is None:
                continue
            if both := sorted(metrics.keys() & found.metrics):
                raise PluginBroken("two callbacks give one metric", where=plugin.name, found=", ".join(both))
            metrics |= {name: float(value) for name, value in found.metrics.items()}
            lower |= found.lower_is_better
            cost = {"examples": found.examples, "tokens": found.tokens, "seconds": time.perf_counter() - started}
            kept = {"samples": found.samples} if found.samples else {}
            self.emit("evaluation", step=step, by=plugin.name, **cost, **kept)
        return Evaluation(metrics, lower)

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """After optimizer step ``step``, with all its metrics."""
        self._hook.ernie_step_end(run=self.view, step=step, metrics=metrics)

    def checkpoint_saved(self, path: Path) -> None:
        """A checkpoint is complete on disk; main rank only."""
        if self.view.is_main:
            self._hook.ernie_checkpoint_saved(run=self.view, path=path)
