"""Assembly of a run, in reading order: tokenizer, data, model, weights, quantizer, adapter, parallel strategy, objective,
optimizer, resume. Nothing is trained here (``loop.py``), and what must happen before paddle is imported has happened
(``prepare.py``).
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle

import erniecore
from erniecore.checkpoint.files import translated
from erniecore.config.resolved import write_resolved
from erniecore.engine import seed
from erniecore.engine.host_memory import release_freed
from erniecore.engine.models import score_head
from erniecore.engine.models.weights import load_weights
from erniecore.engine.preparation.prepare import Prepared, model_layout, wants_score
from erniecore.engine.preparation.reference import make_reference
from erniecore.engine.preparation.resume import check_data
from erniecore.engine.preparation.rundir import end_path, log
from erniecore.engine.ranks import any_rank
from erniecore.engine.training import state
from erniecore.engine.training.ema import Ema
from erniecore.engine.training.feed import Feed, build_feed
from erniecore.engine.training.guards import StepGuard
from erniecore.engine.training.optim import OPTIMIZERS, AdamW, count_layers
from erniecore.engine.training.pulse import Pulse, end_process
from erniecore.engine.training.quarantine import Quarantine
from erniecore.engine.training.recompute import set_recompute
from erniecore.engine.training.scorers import scorers_of
from erniecore.errors import ConfigError
from erniecore.types import Batch, Objective, Tokenizer

if TYPE_CHECKING:
    from erniecore.engine.stop import StopRequest
    from erniecore.engine.training.state import Writing
    from erniecore.types.model import Layer


@dataclass(eq=False)
class Run:
    """Everything that a run consists of. Callbacks see it as a ``RunView``.

    Attributes:
        policy: the model as built and adapted, a ``CausalLM``. model: the same after the parallel strategy.
        feed: training and held-out batches. objective, optimizer, ema, guard: of the training step.
        step, tokens, seconds: done so far, over all sessions of this run. saved: (step, path) of the last checkpoint.
        stop: whether this process was asked to stop. asked: why all of them will. quarantine: steps that are passed over.
        writing: the checkpoint that is being written in the background.
    """

    ready: Prepared
    tokenizer: Tokenizer
    feed: Feed
    policy: Any
    model: Layer
    objective: Objective
    optimizer: AdamW
    ema: Ema | None
    stop: StopRequest
    guard: StepGuard = field(init=False)
    quarantine: Quarantine = field(init=False)
    writing: Writing | None = None
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    saved: tuple[int, Path] | None = None

    def __post_init__(self) -> None:
        self.settings, self.out, self.hook = self.ready.settings, self.ready.out, self.ready.host.hook
        self.device, self.console, self.is_main = self.ready.device, self.ready.console, self.ready.cluster.rank == 0
        self.ranks, self.asked = self.ready.ranks, ""
        self.seed: int = self.settings.run.seed
        # epochs count data; steps that repeat it come on top
        self.total_steps = self.feed.total_steps * (1 if self.settings.train.max_steps else self.repeats)
        self.vocab_size = int(self.ready.architecture["vocab_size"])
        self.last_metrics: dict[str, float] = {}
        train = self.settings.train
        self.guard = StepGuard(train.max_skips, self.warn, spike_factor=train.spike_factor)
        self.quarantine = Quarantine(self.out, writes=self.is_main)
        self.failed_saves = 0
        record = end_path(self.out, self.ranks.rank)
        self.pulse = Pulse(self.out, self.settings.run.hang_timeout, self.ranks, end_process(record))
        self.ranks.watch(self.pulse.alarm)
        self.started = self.last_save = time.monotonic()

    def batches(self, step: int) -> list[Batch]:
        """Micro-batches of optimizer step ``step`` (1-based) on this rank."""
        return self.feed.batches((step - 1) // self.repeats + 1)

    @property
    def repeats(self) -> int:
        """How many steps in a row get the same batches; more than 1 where the objective asks for it."""
        return self.objective.repeats

    def stop_reason(self) -> str:
        """Why the run is to stop, asked of all ranks: the same answer on each, so they stop after the same step."""
        self.pulse.beat(f"after step {self.step}")
        self.asked = self.asked or any_rank(self.ranks, self.stop.reason)
        return self.asked

    def emit(self, event: str, **fields: object) -> None:
        """One event to every callback that shows events, and to the log; main rank only."""
        if not self.is_main:
            return
        full = {"event": event, "time": time.time(), **fields}
        if event != "step":
            log.info("%s %s", event, {k: v for k, v in fields.items() if k != "plan"})
        with translated(self.out, "writing an event", "checkpoints are untouched"):
            self.hook.ernie_event(run=self, event=full)

    def warn(self, kind: str, **fields: object) -> None:
        """A ``warning`` event."""
        self.emit("warning", kind=kind, **fields)


def build(ready: Prepared, stop: StopRequest) -> Run:
    """The run, ready to train, at the step where it continues.

    Raises:
        ErnieError: whatever is wrong with settings, data, weights or checkpoint, before anything is trained.
    """
    if ready.cluster.rank == 0:
        with translated(ready.out, "writing resolved.yaml"):
            write_resolved(ready.loaded, ready.out / "resolved.yaml")
    tokenizer = build_tokenizer(ready)
    feed = build_feed(ready, tokenizer)
    if ready.resumption.checkpoint is not None:
        check_data(ready.resumption.checkpoint.state["data"], feed.state())
    return assemble(ready, tokenizer, feed, stop)


def assemble(ready: Prepared, tokenizer: Tokenizer, feed: Feed, stop: StopRequest) -> Run:
    """Model, objective and optimizer over data that is already there; the state of a checkpoint if there is one."""
    settings, hook = ready.settings, ready.host.hook
    policy = build_model(ready)
    layout = model_layout(ready.loaded, ready.host, ready.architecture, ready.parallel_plan)
    model = hook.ernie_parallelize(model=policy, layout=layout, plan=ready.parallel_plan, ranks=ready.ranks)
    objective = build_objective(ready, policy, tokenizer)
    if ready.ranks.size > 1 and objective.repeats > 1:
        # what is carried from step to step differs by rank, and a checkpoint would hold rank 0's alone
        message = f"{ready.names['method']} keeps rows from step to step here, which only one process can"
        raise ConfigError.at("parallel", message)
    ready.ranks.adopt(policy, objective)
    make = OPTIMIZERS[settings.train.optimizer]
    factors = getattr(policy, "lr_factors", {})
    ranks = ready.ranks
    trained = [name for name, parameter in policy.named_parameters() if not parameter.stop_gradient]
    optimizer = make(
        policy.named_parameters(),
        settings.train,
        factors,
        ranks.share,
        lambda name, shape: ranks.piece(name, shape).shape,
        max(ranks.exchange(count_layers(trained))),
    )
    ranks.attach(optimizer.slots)
    ema = Ema(policy.named_parameters(), settings.train.ema) if settings.train.ema else None
    run = Run(ready, tokenizer, feed, policy, model, objective, optimizer, ema, stop)
    if ready.resumption.checkpoint is not None:
        state.restore(run, ready.resumption.checkpoint)
        if run.step > run.total_steps:
            raise ConfigError.at("train.max_steps", f"the checkpoint is at step {run.step} already")
    return run


def build_tokenizer(ready: Prepared) -> Tokenizer:
    """From ``model.tokenizer``, else from ``model.path``.

    Raises:
        ConfigError: neither is set, or the tokenizer has more ids than the model.
    """
    section = ready.settings.model
    directory = getattr(section, "tokenizer", "") or getattr(section, "path", "")
    if not directory:
        raise ConfigError.at("model.tokenizer", "no tokenizer: name its directory, or a model directory in model.path")
    tokenizer: Tokenizer = ready.host.hook.ernie_build_tokenizer(config=section, directory=Path(directory))
    vocab_size = int(ready.architecture["vocab_size"])
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError.at(
            "model.tokenizer", f"the tokenizer has {tokenizer.vocab_size} ids, the model only {vocab_size} (vocab_size)"
        )
    return tokenizer


def build_model(ready: Prepared) -> Any:
    """The model with its weights, quantised and adapted as the run wants it.

    When a checkpoint holds all weights, the base weights are not read first.
    """
    settings, hook = ready.settings, ready.host.hook
    seed.seed_paddle(settings.run.seed, seed.INIT)
    policy = hook.ernie_build_model(
        config=settings.model, architecture=ready.architecture, dtype=settings.train.precision
    )
    path = getattr(settings.model, "path", "")
    replaced = ready.resumption.checkpoint is not None and settings.adapter is None and ready.reference == "none"
    state_adapter = score_head.without_head(ready.state_adapter) if ready.new_score else ready.state_adapter
    if score_head.has_score(ready.architecture) and not ready.new_score:
        score_head.add_score_head(policy)
    if path and not replaced:
        log.info("weights: %s", load_weights(policy, Path(path), state_adapter))
    if settings.quantizer is not None:
        policy = hook.ernie_quantize_model(config=settings.quantizer, model=policy, phase="train")
        release_freed()
    if settings.adapter is not None:
        policy = hook.ernie_adapt_model(config=settings.adapter, model=policy)
    if wants_score(ready.loaded):
        score_head.add_score_head(policy).score.weight.stop_gradient = False  # an adapter freezes what it finds
    set_recompute(policy, settings.train.recompute)
    return policy


def build_objective(ready: Prepared, policy: Any, tokenizer: Tokenizer) -> Objective:
    """The method's objective; with a reference if the method asks for one."""
    reference = make_reference(policy, ready.reference, adapted=ready.settings.adapter is not None)
    objective: Objective = ready.host.hook.ernie_build_objective(
        config=ready.settings.method, policy=policy, reference=reference, tokenizer=tokenizer
    )
    objective.loss_chunk = ready.settings.train.loss_chunk
    objective.scorers = scorers_of(ready.host, ready.loaded)
    objective.exchange, objective.counts = ready.ranks.exchange, ready.ranks.counts
    return objective


def announce(run: Run) -> None:
    """The ``run_start`` event: everything needed to know what ran."""
    ready, resumption = run.ready, run.ready.resumption
    run.emit(
        "run_start",
        name=ready.name,
        version=erniecore.__version__,
        python=platform.python_version(),
        paddle=paddle.__version__,
        device=ready.device.name,
        device_facts=dict(ready.device.describe()),
        kernels=dict(ready.kernels.names),
        plugins=dict(ready.names),
        plan=ready.plan.lines(),
        data=list(run.feed.summary),
        notes=list(resumption.notes),
        step=run.step,
        total_steps=run.total_steps,
        resumed_from=str(resumption.checkpoint.path) if resumption.checkpoint else "",
        seed=run.seed,
        config_hash=ready.config_hash,
        parameters=ready.plan.parameters.total,
        trainable=sum(prod(run.ranks.piece(s.name, s.parameter.shape).shape) for s in run.optimizer.slots),
    )
    for warning in (*ready.warnings, *run.feed.warnings):
        run.warn("setup", message=warning)
