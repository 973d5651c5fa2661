"""The events of a run: what ``ernie_event`` gets, a line of ``events.jsonl`` and of ``--json``. One ``TypedDict`` per event; the
text of a field says what it is, with its unit.

A number that is not finite is ``null`` in the file. A step that was repeated after a resume occurs twice, and the later line
counts. Plugins may emit further events under names of their own, and whoever reads events passes over names that it does not
know. Fields are only added; a change of one is a change of the public interface.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from typing_extensions import NotRequired, TypedDict


class Event(TypedDict):
    """What every event has."""

    event: Annotated[str, "name of the event"]
    time: Annotated[float, "seconds since 1970 (UTC)"]


class AtStep(Event):
    """What an event has that is about a moment of training."""

    step: Annotated[int, "optimizer steps done since the start of the run"]


class RunStart(AtStep):
    """``run_start``: everything is built, the first step comes next. Once per session: a run that was resumed has several."""

    name: Annotated[str, "name of the run"]
    version: Annotated[str, "of erniecore"]
    python: Annotated[str, "version of Python"]
    paddle: Annotated[str, "version of Paddle"]
    device: Annotated[str, "name of the device, such as `cpu`"]
    device_facts: Annotated[dict[str, str], "what the device says of itself"]
    kernels: Annotated[dict[str, str], "operator → the kernel that computes it"]
    plugins: Annotated[dict[str, Any], "kind → name of the plugin, or names"]
    plan: Annotated[list[tuple[str, str]], "label and text of each line of the plan"]
    data: Annotated[list[str], "lines on the data that was read"]
    notes: Annotated[list[str], "what is not as usual, such as what a resumed run goes on from"]
    total_steps: Annotated[int, "steps of the whole run"]
    resumed_from: Annotated[str, "directory of the checkpoint; empty for a new run"]
    seed: Annotated[int, "`run.seed`"]
    batch_size: Annotated[int, "`train.batch_size`"]
    accumulation: Annotated[int, "`train.accumulation`"]
    rows: Annotated[int, "of a step, on all ranks together"]
    config_hash: Annotated[str, "of the settings that decide the result"]
    fingerprint: Annotated[
        dict[str, Any], "hashes of the data and of the model that were read; another rank's is empty"
    ]
    parameters: Annotated[int, "of the whole model"]
    trainable: Annotated[int, "trained parameters on this rank"]


class Begin(AtStep):
    """``begin``: the method has passed over all samples before the first step. Further fields are the method's."""

    seconds: Annotated[float, "that the pass took"]


class Step(AtStep):
    """``step``: an optimizer step is done. Further fields are metrics of the method, the model and the callbacks."""

    loss: Annotated[float | None, "mean over the loss tokens of all ranks; null for a step without any"]
    lr: Annotated[float, "learning rate"]
    grad_norm: Annotated[float | None, "L2 norm of the gradient before clipping, all ranks"]
    tokens: Annotated[int, "of this step, all ranks"]
    tokens_per_s: Annotated[float, "of this step, all ranks"]
    seconds: Annotated[float, "that the step took"]
    peak_memory: Annotated[int | None, "most bytes in use on the main rank so far; null where the device does not know"]
    eta: Annotated[float, "seconds left, from the mean so far"]
    skipped: NotRequired[Annotated[int, "1: the guards refused the update"]]


class Eval(AtStep):
    """``eval``: an evaluation is done. Further fields are metrics of the method and of callbacks."""

    seconds: Annotated[float, "that the evaluation took"]
    best_step: NotRequired[Annotated[int, "step of the best evaluation so far, with `eval.best`"]]


class Evaluated(AtStep):
    """``evaluation``: what one callback of an evaluation measured is in the ``eval`` event that follows; this is what it took."""

    by: Annotated[str, "name of the callback"]
    examples: Annotated[int, "that were scored, all ranks"]
    tokens: Annotated[int, "that the model wrote for it, all ranks"]
    seconds: Annotated[float, "that it took"]
    samples: NotRequired[Annotated[str, "file in the run directory with some of the examples and their scores"]]


class Checkpoint(AtStep):
    """``checkpoint``: a checkpoint is complete on disk."""

    path: Annotated[str, "its directory"]
    bytes: Annotated[int, "of its files"]
    seconds: Annotated[float, "from the request until it was complete"]
    stall: Annotated[float, "seconds for which training stood still"]


class EarlyStop(AtStep):
    """``early_stop``: training ends before its last step, because nothing gets better or a callback asked for it."""

    total_steps: Annotated[int, "steps that were planned"]
    reason: Annotated[str, "why"]


class Export(AtStep):
    """``export``: the trained model or adapter has been written."""

    path: Annotated[str, "its directory"]
    seconds: Annotated[float, "that writing took"]


class Warned(Event):
    """``warning``: something that the run survives. Further fields depend on ``kind``: `attempt` of a `restart`; `to`,
    `checkpoint`, `skipped_steps`, `reason` of a `rollback`; `failures`, `last_saved_step` of a `save`; `where`, `found`,
    `skipped`, `samples` of `numerics`."""

    kind: Annotated[str, "`setup`, `memory`, `numerics`, `rollback`, `save`, `restart`, `stacks`, `export`, `log`, …"]
    message: NotRequired[Annotated[str, "a sentence; `numerics` has its facts instead"]]
    step: NotRequired[Annotated[int, "the step, where it is about one"]]


class RunEnd(Event):
    """``run_end``: the session is over. A session that was killed has none."""

    status: Annotated[Literal["finished", "preempted", "interrupted", "failed"], "how it ended"]
    reason: NotRequired[Annotated[str, "who or what asked for the stop; of preempted sessions"]]
    steps: Annotated[int, "done, since the start of the run"]
    tokens: Annotated[int, "since the start of the run, all ranks"]
    seconds: Annotated[float, "of training, since the start of the run"]
    peak_memory: Annotated[int | None, "most bytes in use on the main rank; null where the device does not know"]
    tensor_memory: Annotated[int | None, "most bytes that tensors had, with those over mapped files"]
    planned_memory: Annotated[int | None, "what the plan said of that"]
    planned_seconds: Annotated[float | None, "what the plan said of one step of full rows"]


#: name -> its fields
EVENTS: Mapping[str, type[Event]] = {
    "run_start": RunStart,
    "begin": Begin,
    "step": Step,
    "eval": Eval,
    "evaluation": Evaluated,
    "checkpoint": Checkpoint,
    "early_stop": EarlyStop,
    "export": Export,
    "warning": Warned,
    "run_end": RunEnd,
}
#: events that may have fields beyond those that are listed
OPEN = frozenset({"begin", "step", "eval", "warning"})
#: fields of a step or an evaluation that say which it is, how long it took and how much it had: no metrics
COUNTS = frozenset(
    {"event", "step", "time", "seconds", "eta", "tokens", "samples", "rank", "skipped", "best_step"}
)  # fmt: skip


def metrics(event: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a ``step`` or ``eval`` event, by name: finite numbers that are neither counts nor times. Of any other event
    nothing. Loggers, charts and tables show these."""
    if event.get("event") not in ("step", "eval"):
        return {}
    numbers = {name: value for name, value in event.items() if isinstance(value, int | float) and name not in COUNTS}
    return {name: float(v) for name, v in numbers.items() if math.isfinite(v) and not isinstance(v, bool)}
