"""A run without a model: what callbacks see, and one complete life of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from erniecore.api.parallel import ParallelConfig, ParallelPlan
from erniecore.api.testing import CORE_SECTIONS, SingleProcess
from erniecore_conformance.toys.tokenizer import ToyTokenizer

if TYPE_CHECKING:
    from erniecore.api.testing import Layer
    from erniecore_conformance.subjects import Subject

#: Metrics that no callback knows beforehand, some not finite.
STRANGE: Mapping[str, float] = MappingProxyType(
    {"loss": 1.5, "moe/max_load": 2.0, "a/b/c": float("nan"), "größe": float("inf"), "": 0.0}
)


class FakeRun:
    """``types.RunView`` over a directory; remembers what was emitted."""

    model: Layer = None
    console = "auto"
    ranks = SingleProcess()
    parallel_plan = ParallelPlan({})
    tokenizer = ToyTokenizer()

    def __init__(self, out: Path, *, is_main: bool = True, callbacks: Mapping[str, Any] | None = None) -> None:
        self.out, self.step, self.total_steps, self.is_main = out, 0, 3, is_main
        sections = {name: section() for name, section in CORE_SECTIONS.items()}
        text = json.dumps({name: section.model_dump(mode="json") for name, section in sections.items()})
        self.settings = SimpleNamespace(
            **sections, parallel=ParallelConfig(), callbacks=dict(callbacks or {}), formats={},
            model_dump_json=lambda indent=None: text,
        )  # fmt: skip
        self.emitted: list[dict[str, object]] = []
        self.asked = ""

    def emit(self, event: str, **fields: object) -> None:
        """Record the event in a list."""
        self.emitted.append({"event": event, **fields})

    def stopping(self) -> str:
        """Nothing asks for a stop."""
        return ""

    def request_stop(self, reason: str) -> None:
        """Keep the first reason in ``asked``."""
        self.asked = self.asked or reason


#: What the engine says of a run when it starts, and with each step.
RUN_START: Mapping[str, Any] = {
    "name": "toy",
    "version": "0.1.0",
    "python": "3.11.0",
    "paddle": "3.3.1",
    "device": "toy",
    "device_facts": {"processor": "toy"},
    "plugins": {"model": "toy", "method": "toy"},
    "plan": [["model", "toy, 6,000 parameters"], ["steps", "3"]],
    "data": ["train  8 rows"],
    "notes": [],
    "step": 0,
    "total_steps": 3,
    "resumed_from": "",
    "seed": 42,
    "config_hash": "0" * 16,
    "parameters": 6000,
    "trainable": 6000,
}
STEP: Mapping[str, float] = {
    "loss": 1.5,
    "lr": 1e-4,
    "grad_norm": 0.5,
    "tokens": 9,
    "tokens_per_s": 90.0,
    "seconds": 0.1,
    "peak_memory": 2**20,
}


def start(subject: Subject, run: FakeRun) -> None:
    """The first hooks of a run."""
    notify(subject, "ernie_check_settings", settings=run.settings)
    notify(subject, "ernie_run_start", run=run)
    event(subject, run, "run_start", **RUN_START)


def one_step(subject: Subject, run: FakeRun, metrics: Mapping[str, float] = STRANGE) -> None:
    """One optimizer step, with an event, as the loop calls it."""
    run.step += 1
    facts = {**STEP, **metrics}
    notify(subject, "ernie_step_start", run=run, step=run.step)
    notify(subject, "ernie_collect_metrics", run=run, step=run.step)
    notify(subject, "ernie_step_end", run=run, step=run.step, metrics=MappingProxyType(facts))
    event(subject, run, "step", step=run.step, **facts)


def finish(subject: Subject, run: FakeRun, error: BaseException | None = None) -> None:
    """The last hooks of a run."""
    event(subject, run, "run_end", status="failed" if error else "finished", steps=run.step, tokens=27, seconds=0.3)
    notify(subject, "ernie_run_end", run=run, error=error)


def lifecycle(subject: Subject, out: Path, *, is_main: bool = True, error: BaseException | None = None) -> FakeRun:
    """Start, three steps, an evaluation, a checkpoint, a warning, the end."""
    run = FakeRun(out, is_main=is_main, callbacks={subject.name: subject.config()})
    start(subject, run)
    for _ in range(3):
        one_step(subject, run)
    event(subject, run, "eval", step=3, loss=1.25, seconds=0.1)
    event(subject, run, "warning", kind="setup", message="a warning")
    event(subject, run, "never_heard_of", value=[1, {"a": None}])
    checkpoint = out / "ckpt" / "step-00000003"
    checkpoint.mkdir(parents=True, exist_ok=True)
    event(subject, run, "checkpoint", step=3, path=str(checkpoint), bytes=1000, seconds=0.1)
    if is_main:
        notify(subject, "ernie_checkpoint_saved", run=run, path=checkpoint)
    finish(subject, run, error)
    return run


def event(subject: Subject, run: FakeRun, name: str, /, **fields: object) -> None:
    """An event, shown on the main rank only."""
    if run.is_main:
        full = {"event": name, "time": 1.75e9 + run.step, **fields}
        notify(subject, "ernie_event", run=run, event=MappingProxyType(full))


def notify(subject: Subject, hook: str, **arguments: Any) -> Any:
    """Call a lifecycle hook where the subject has it."""
    return subject.call(hook, **arguments) if subject.implements(hook) else None
