"""Assembly of a run, in reading order: tokenizer, data, model, weights, quantizer, adapter, parallel strategy, objective,
optimizer, checkpoint. Nothing is trained here (``trainer.py``), and what must happen before paddle is imported has happened
(``preparation/``).
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle
from erniecore_system.contents import digests
from erniecore_system.memory import release_freed

import erniecore
from erniecore.capabilities import AdapterCapability, ParallelCapability, QuantizerCapability
from erniecore.config.packed_base import quantizer_of
from erniecore.engine import seed
from erniecore.engine.fingerprint import KEY as FINGERPRINT
from erniecore.engine.models.filling import attach_zeros, fill
from erniecore.engine.models.weights import attach_weights, check_weights
from erniecore.engine.optimizers.parameters import freeze, trained_parameters
from erniecore.engine.preparation.rundir import STATE_FORMAT, end_path, log
from erniecore.engine.runtime import KEY as RUNTIME
from erniecore.engine.runtime import runtime_fingerprint
from erniecore.engine.training.best_step import Best
from erniecore.engine.training.callbacks import Callbacks, View
from erniecore.engine.training.export import export_model
from erniecore.engine.training.guards import StepGuard
from erniecore.engine.training.recompute import set_recompute
from erniecore.engine.training.run_data import RunData, build_run_data
from erniecore.engine.training.saving import CheckpointSaver
from erniecore.engine.training.skipped_steps import SkippedSteps
from erniecore.engine.training.state import TrainState
from erniecore.engine.training.tokenizer import build_tokenizer
from erniecore.engine.training.trainer import Trainer
from erniecore.engine.training.watchdog import Watchdog, end_process
from erniecore.errors import ConfigError
from erniecore.types.optimizer import Optimizer
from erniecore.types.process_group import ProcessGroup
from erniecore.types.protocols import RateFactors
from erniecore.types.run import Objective
from erniecore.types.text import Tokenizer

if TYPE_CHECKING:
    from erniecore_checkpoint.reader import Checkpoint

    from erniecore.engine.context import Resumption, RunContext
    from erniecore.engine.stop import StopRequest
    from erniecore.engine.training.ema import Ema


def build(context: RunContext, resumption: Resumption, ranks: ProcessGroup, stop: StopRequest) -> Trainer:
    """The run, ready to train, at the step where it continues.

    Raises:
        ErnieError: whatever is wrong with settings, data, weights or checkpoint, before anything is trained.
    """
    tokenizer = build_tokenizer(context.host, context.settings.model, context.model.vocab_size)
    data = build_run_data(context, tokenizer, resumption.checkpoint)
    if resumption.checkpoint is not None:
        from erniecore.engine.preparation.continuing import check_data

        other_text = {"tokenizer", "template"} & {*context.settings.run.accept_changes}
        check_data(resumption.checkpoint.state["data"], data.state(), other_samples=bool(other_text))
    return assemble(context, resumption.checkpoint, ranks, tokenizer, data, stop)


def assemble(
    context: RunContext,
    checkpoint: Checkpoint | None,
    ranks: ProcessGroup,
    tokenizer: Tokenizer,
    data: RunData,
    stop: StopRequest,
) -> Trainer:
    """Model, objective and optimizer over data that is already there; the state of ``checkpoint`` if there is one."""
    settings, is_main = context.settings, ranks.rank == 0
    if settings.eval.best and data.eval is None and not context.host.implementations("ernie_evaluate"):
        raise ConfigError.at("eval.best", "there are no held-out rows; name some (data.eval) or set data.eval_fraction")
    state = build_state(context, ranks, tokenizer, weights_follow=checkpoint is not None)
    # epochs count data; steps that repeat it come on top
    total_steps = data.total_steps * (1 if settings.train.max_steps else state.repeats)
    callbacks = Callbacks(context.host, View(context, state, ranks, total_steps, tokenizer))
    facts = partial(state_facts, context, data, total_steps)
    saver = CheckpointSaver(context.out, settings.checkpoint, ranks, callbacks, facts, context.config_hash)
    end = end_process(end_path(context.out, ranks.rank))
    watchdog = Watchdog(context.out, settings.run.hang_timeout, ranks, end)
    ranks.watch(watchdog.alarm)
    if checkpoint is not None:
        from erniecore.engine.training.restore import restore

        restore(state, checkpoint, ranks)
        saver.saved = (state.step, checkpoint.path)
        if checkpoint.state["total_steps"] != total_steps:
            state.ended = ""  # a longer run goes on
        if checkpoint.path.parent != context.out / "ckpt":  # another run's
            state.best = Best(evaluated=state.step)
        if state.step > total_steps:
            raise ConfigError.at("train.max_steps", f"the checkpoint is at step {state.step} already")
    return Trainer(
        context,
        state,
        data,
        ranks,
        callbacks=callbacks,
        saver=saver,
        watchdog=watchdog,
        skipped=SkippedSteps(context.out, writes=is_main),
        stop=stop,
        export=lambda: export_model(context, state, ranks, callbacks, tokenizer, lambda: build_model(context)),
    )


def state_facts(context: RunContext, data: RunData, total_steps: int) -> dict[str, Any]:
    """``state.json`` but for the counters: what the data was, the runtime, and the settings."""
    return {
        "format": STATE_FORMAT,
        "total_steps": total_steps,
        "seed": context.settings.run.seed,
        "data_size": context.parallel_plan.data_size,
        "micro_batches": context.parallel_plan.micro_batches(context.settings.train.accumulation),
        "data": data.state(),
        RUNTIME: runtime_fingerprint(context.device, context.kernels),
        FINGERPRINT: context.fingerprint.result(),
        "plugins": context.names,
        "settings": context.settings_json,
    }


def build_state(
    context: RunContext, ranks: ProcessGroup, tokenizer: Tokenizer, *, weights_follow: bool = False
) -> TrainState:
    """Model, objective and optimizer as they are before the first step.

    Args:
        weights_follow: those of a checkpoint, so that none need to be read where it holds all of them.
    """
    settings, hook = context.settings, context.host.hook
    keeps = ParallelCapability.EMPTY in context.plugins["parallel"].capabilities
    built, layout = build_model(context, weights_follow=weights_follow, empty=keeps), context.model.layout
    policy = hook.ernie_parallelize(model=built, layout=layout, plan=context.parallel_plan, ranks=ranks)
    fill(policy)
    release_freed(collect=False)  # a rank reads and converts more than the ranges that it keeps
    objective = build_objective(context, policy, tokenizer, ranks)
    ranks.attach_model(policy, objective)
    optimizer = build_optimizer(context, policy, ranks)
    train = settings.train
    ema = _average(policy, train.ema) if train.ema else None
    guard = StepGuard(train.max_skips, spike_factor=train.spike_factor)
    return TrainState(policy, objective, optimizer, ema, guard, adapted=settings.adapter is not None)


def _average(policy: Any, decay: float) -> Ema:
    from erniecore.engine.training.ema import Ema

    return Ema(policy.named_parameters(), decay)


def build_model(context: RunContext, *, weights_follow: bool = False, empty: bool = False) -> Any:
    """The model with its weights, quantized and adapted as the run wants it.

    When a checkpoint holds all weights, the base weights are not read first. ``empty``: what neither quantizer nor adapter
    needed has no values yet, see ``filling.py``.
    """
    settings, hook, described = context.settings, context.host.hook, context.model
    path = settings.model.path
    replaced = weights_follow and settings.adapter is None and context.reference == "none"
    adapter = described.head.of_directory(described.state_adapter)
    packed, checked = bool(quantizer_of(described.architecture)), None
    if path and not (replaced or packed):
        checked = check_weights(Path(path), described.architecture, adapter)
    seed.seed_paddle(settings.run.seed, seed.INIT)
    with paddle.LazyGuard():
        policy = hook.ernie_build_model(
            config=settings.model, architecture=described.architecture, dtype=settings.train.precision
        )
        policy = described.head.add_stored(policy)
    if checked is not None:
        log.info("weights: %s", attach_weights(policy, Path(path), checked))
    elif replaced or packed:
        attach_zeros(policy)
    else:
        from erniecore.engine.models.random_weights import attach_random

        attach_random(policy, adapter, settings.run.seed)
    if settings.quantizer is not None:
        if QuantizerCapability.EMPTY not in context.plugins["quantizer"].capabilities:
            fill(policy)
        policy = hook.ernie_quantize_model(config=settings.quantizer, model=policy, phase="train")
        release_freed()
    if packed:
        from erniecore.engine.models.quantized import attach

        attach(policy, Path(path))
    if settings.adapter is not None:
        if AdapterCapability.EMPTY not in context.plugins["adapter"].capabilities:
            fill(policy)
        policy = hook.ernie_adapt_model(config=settings.adapter, model=policy)
    policy = described.head.add_trained(policy)
    freeze(policy, settings.train.freeze)
    set_recompute(policy, settings.train.recompute)
    if not empty:
        fill(policy)
    return policy


def build_objective(context: RunContext, policy: Any, tokenizer: Tokenizer, ranks: ProcessGroup) -> Objective:
    """The method's objective; with a reference if the method asks for one.

    Raises:
        ConfigError: it keeps data from step to step, which several processes cannot.
    """
    settings = context.settings
    reference = None
    if context.reference != "none":
        from erniecore.engine.models.reference_model import make_reference

        reference = make_reference(policy, context.reference, adapted=settings.adapter is not None)
    objective: Objective = context.host.hook.ernie_build_objective(
        config=settings.method, policy=policy, reference=reference, tokenizer=tokenizer
    )
    objective.loss_chunk = settings.train.loss_chunk
    if rewards := context.plugins.get("reward", ()):
        from erniecore.engine.training.rewards import reward_functions_of

        objective.reward_functions = reward_functions_of(context.host, rewards, settings.rewards)
    objective.all_gather_object, objective.counts = ranks.all_gather_object, ranks.counts
    if ranks.size > 1 and objective.carries:
        # what is carried from step to step differs by rank, and a checkpoint would hold rank 0's alone
        message = f"{context.names['method']} keeps rows from step to step here, which only one process can"
        raise ConfigError.at("parallel", message)
    return objective


def build_optimizer(context: RunContext, policy: Any, ranks: ProcessGroup) -> Optimizer:
    """The optimizer over the trainable parameters, with the state of this rank's shards."""
    settings = context.settings
    parameters = trained_parameters(
        policy.named_parameters(),
        settings.train,
        ranks=ranks,
        layout=context.model.layout,
        factors=policy.lr_factors if isinstance(policy, RateFactors) else {},
        adapted=settings.adapter is not None,
    )
    optimizer: Optimizer = context.host.hook.ernie_build_optimizer(
        config=settings.optimizer, parameters=parameters, ranks=ranks
    )
    ranks.attach(optimizer.slots)
    return optimizer


def announce(trainer: Trainer, resumption: Resumption, warnings: Sequence[str]) -> None:
    """The ``run_start`` event: everything needed to know what ran."""
    context, state, train = trainer.context, trainer.state, trainer.context.settings.train
    shard_spec, slots = trainer.ranks.shard_spec, state.optimizer.slots
    trainer.callbacks.emit(
        "run_start",
        name=context.name,
        version=erniecore.__version__,
        python=platform.python_version(),
        paddle=paddle.__version__,
        device=context.device.name,
        device_facts=dict(context.device.describe()),
        kernels=dict(context.kernels.names),
        plugins=context.names,
        plan=context.plan.lines(),
        data=list(trainer.data.summary),
        notes=list(resumption.notes),
        step=state.step,
        total_steps=trainer.total_steps,
        resumed_from=str(resumption.checkpoint.path) if resumption.checkpoint else "",
        seed=context.settings.run.seed,
        batch_size=train.batch_size,
        accumulation=train.accumulation,
        rows=context.rows,
        config_hash=context.config_hash,
        fingerprint=digests(context.fingerprint.result()) if context.is_main else {},
        parameters=context.plan.parameters.total,
        trainable=sum(prod(shard_spec(slot.name, slot.parameter.shape).shape) for slot in slots),
    )
    for warning in (*warnings, *trainer.data.warnings):
        trainer.callbacks.warn("setup", message=warning)
