"""The training loop. One step: data, forward and backward, one read from the device, update, events; then evaluation
and checkpoint where they are due. Everything it needs was built by ``session.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from erniecore.engine import metrics, seed
from erniecore.engine.ranks import any_rank, combine
from erniecore.engine.scoring.differences import with_differences
from erniecore.engine.scoring.evaluate import evaluate
from erniecore.engine.training import guards
from erniecore.engine.training.begin import begin
from erniecore.engine.training.recover import keep_evidence, roll_back
from erniecore.engine.training.schedule import learning_rate
from erniecore.engine.training.state import save, settle
from erniecore.errors import NumericsError, Preempted
from erniecore.types import Batch, StepOutput

if TYPE_CHECKING:
    from erniecore.engine.training.session import Run


def train(run: Run) -> None:
    """From ``run.step`` to ``run.total_steps``.

    Raises:
        Preempted: asked to stop; the state is on disk.
        NumericsError: too many steps in a row that are not finite.
    """
    run.model.train()
    with run.pulse.resting():
        begin(run)
    while run.step < run.total_steps:
        limits(run)
        if run.stop_reason():
            preempt(run)
        step = run.step + 1
        if run.quarantine.covers(step):
            run.step = step
        elif not learn(run, step):
            continue
        settle(run, wait=False)
        if due(step, run.settings.eval.every) and step < run.total_steps:
            evaluate_run(run)
        if save_due(run) and step < run.total_steps:
            with run.pulse.resting():
                save(run, background=run.settings.checkpoint.background)


def limits(run: Run) -> None:
    """Ask for a stop where the settings want one."""
    settings = run.settings.run
    if settings.until and run.step >= settings.until:
        run.stop.request(f"run.until={settings.until}")
    elif settings.max_minutes and time.monotonic() - run.started >= 60 * settings.max_minutes:
        run.stop.request(f"run.max_minutes={settings.max_minutes:g}")


def save_due(run: Run) -> bool:
    """By steps, by the clock, or because the file ``control/save`` asks for it (and is removed); the same on all ranks,
    whose clocks differ."""
    settings, asked = run.settings.checkpoint, run.out / "control" / "save"
    late = settings.minutes and time.monotonic() - run.last_save >= 60 * settings.minutes
    wanted = any_rank(run.ranks, "save" if asked.exists() or late else "")
    if wanted:
        asked.unlink(missing_ok=True)
    return bool(wanted) or due(run.step, settings.every)


def learn(run: Run, step: int) -> bool:
    """One optimizer step; False when the run went back to a checkpoint instead.

    Raises:
        NumericsError: too many bad steps in a row, and no way back.
    """
    started = time.perf_counter()
    run.pulse.beat(f"in step {step}")
    run.hook.ernie_step_start(run=run, step=step)
    seed.seed_paddle(run.seed, seed.STEP, step)
    batches = prepared(run, run.batches(step), step)
    for batch in batches:
        guards.check_token_ids(batch, run.vocab_size)
    output = run.hook.ernie_forward_backward(run=run, batches=batches)
    means, grad_norm, num_tokens = reduced(run, output)
    rate = learning_rate(step, run.total_steps, run.settings.train)
    try:
        applied = update(run, step, rate, means.get("loss", 0.0), grad_norm, batches)
    except NumericsError as error:
        with run.pulse.resting():
            roll_back(run, error, batches)
        return False
    run.step, run.tokens = step, run.tokens + num_tokens
    seconds = time.perf_counter() - started
    run.seconds += seconds
    report(run, with_differences(means), rate, grad_norm, num_tokens, seconds, applied)
    return True


def prepared(run: Run, batches: Sequence[Batch], step: int) -> Sequence[Batch]:
    """What is learned in this step: the data's batches, or what the objective makes of them."""
    return run.objective.prepare(batches, step=step, seed=seed.derive_seed(run.seed, seed.OBJECTIVE, step))


def reduced(run: Run, output: StepOutput) -> tuple[dict[str, float], float, int]:
    """Means of the metrics, gradient norm and tokens of the whole step, over all ranks; gradients are summed."""
    run.ranks.reduce_gradients(run.optimizer.slots)
    own, (squares,) = metrics.read_sums(output.metrics, run.optimizer.gradient_square_sum(run.ranks.counts_parameter))
    sums, squares, num_tokens = combine(run.ranks, own, squares, output.num_tokens)
    return metrics.means(sums), math.sqrt(squares), num_tokens


def update(run: Run, step: int, rate: float, loss: float, grad_norm: float, batches: Sequence[Batch]) -> bool:
    """Apply the gradients if the step is good, and drop them; whether they were applied. The first bad step of a series
    leaves its evidence."""
    try:
        applied = run.guard.allows(step, loss, grad_norm, batches, run.optimizer.gradients())
    finally:
        if run.guard.first_bad == step and run.is_main:
            keep_evidence(run, step, loss, grad_norm, batches)
    if applied:
        run.optimizer.step(rate, guards.clip_scale(grad_norm, run.settings.train.max_grad_norm))
        run.ranks.updated(run.optimizer.slots)
        run.policy.after_step(rate=rate)
        run.objective.after_step(step=step, rate=rate)
        if run.ema is not None:
            run.ema.update()
    run.optimizer.clear_gradients()
    return applied


def report(
    run: Run,
    means: Mapping[str, float],
    rate: float,
    grad_norm: float,
    num_tokens: int,
    seconds: float,
    applied: bool,
) -> None:
    """Collect further metrics and tell everybody. A step in which nothing is learned has no loss (null)."""
    facts = {
        "loss": math.nan,
        **means,
        "lr": rate,
        "grad_norm": grad_norm,
        "tokens": num_tokens,
        "tokens_per_s": num_tokens / seconds,
        "seconds": seconds,
        "peak_memory": run.device.peak_memory(),
    }
    for more in run.hook.ernie_collect_metrics(run=run, step=run.step):
        facts.update(more or {})
    if not applied:
        facts["skipped"] = 1
    run.last_metrics.update(facts)
    run.hook.ernie_step_end(run=run, step=run.step, metrics=facts)
    run.emit("step", step=run.step, **facts, eta=(run.total_steps - run.step) * run.seconds / run.step)


def evaluate_run(run: Run) -> None:
    """Loss on the held-out data, if there is any, with the averaged weights if there are any."""
    started = time.perf_counter()
    with run.ema.applied() if run.ema is not None else nullcontext():
        batches = run.feed.held_out()
        means = evaluate(run.objective, run.model, batches, run.settings.eval.max_steps, run.stop_reason, run.ranks)
    if means:
        run.emit("eval", step=run.step, **means, seconds=time.perf_counter() - started)
        run.last_metrics.update({f"eval/{name}": value for name, value in means.items()})


def preempt(run: Run) -> None:
    """Save and raise; the same command continues."""
    reason = run.stop_reason()
    with run.pulse.resting():
        path = save(run)
    run.stop.clear_control()
    raise Preempted(
        f"stopped by {reason} after step {run.step} of {run.total_steps}; saved {path}",
        fix=way_on(run),
    )


def way_on(run: Run) -> str:
    """What the user does to continue."""
    if run.settings.run.until and run.step >= run.settings.run.until:
        return "raise run.until, or leave it out, and run the same command"
    if run.settings.run.resume in ("auto", "must"):
        return "the same command continues this run"
    return "continue with --resume auto"


def due(step: int, every: int) -> bool:
    """Whether something that happens every ``every`` steps (0: never) happens now."""
    return every > 0 and step % every == 0
