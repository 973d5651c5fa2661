"""The training loop. One step: data, forward and backward, one read from the device, update, events; then evaluation
and checkpoint where they are due. At the end the last evaluation and checkpoint, and the model directory. Everything that
it needs was built by ``build.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from erniecore_system import mapped
from erniecore_system.memory import MemoryWatch
from erniecore_system.units import size_text

from erniecore.engine import metrics, seed
from erniecore.engine.models.filling import mapped_bytes
from erniecore.engine.optimizers.parameters import first_not_finite, gradient_square_sum
from erniecore.engine.preparation.rundir import log
from erniecore.engine.process_group import any_ranks, combine
from erniecore.engine.scoring.differences import with_differences
from erniecore.engine.training import guards
from erniecore.engine.training.begin import every_sample
from erniecore.engine.training.schedule import factor_of, learning_rate
from erniecore.errors import NumericsError, Preempted
from erniecore.signals import told
from erniecore.types.planning import Forecast
from erniecore.types.process_group import ProcessGroup
from erniecore.types.run import StepOutput
from erniecore.types.samples import Batch

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext
    from erniecore.engine.stop import StopRequest
    from erniecore.engine.training.callbacks import Callbacks
    from erniecore.engine.training.run_data import RunData
    from erniecore.engine.training.saving import CheckpointSaver
    from erniecore.engine.training.skipped_steps import SkippedSteps
    from erniecore.engine.training.state import TrainState
    from erniecore.engine.training.watchdog import Watchdog

#: errors that all ranks have together
_SHARED = (Preempted, NumericsError)


class Trainer:
    """A run that is ready to train.

    Attributes:
        context: what is fixed. state: what the steps change. data: batches by step.
        ranks: the process group. callbacks: who hears of it. saver: checkpoints.
        watchdog: ends a process that hangs. skipped: steps that are not trained on. stop: whether this process was asked
            to stop.
        total_steps: of the whole run. last_metrics: of the last step and, as ``eval/…``, of the last evaluation.
    """

    def __init__(
        self,
        context: RunContext,
        state: TrainState,
        data: RunData,
        ranks: ProcessGroup,
        *,
        callbacks: Callbacks,
        saver: CheckpointSaver,
        watchdog: Watchdog,
        skipped: SkippedSteps,
        stop: StopRequest,
        export: Callable[[], None],
    ) -> None:
        self.context, self.state, self.data, self.ranks = context, state, data, ranks
        self.callbacks, self.saver, self.watchdog, self.skipped = callbacks, saver, watchdog, skipped
        self.stop, self._export = stop, export
        callbacks.view.stopping = self.stop_reason
        callbacks.view.copying = partial(saver.copy, state)
        self.total_steps = callbacks.view.total_steps
        self.last_metrics: dict[str, float] = {}
        self._stop_reason, self._started = "", time.monotonic()
        self._wish: str | None = None
        self._evaluated = 0
        self._memory = MemoryWatch(self._warn_of_memory)
        settings = context.settings
        self._run, self._train, self._eval = settings.run, settings.train, settings.eval
        self._checkpoint, self._hook = settings.checkpoint, context.host.hook
        self._factor = factor_of(context.host, context.plugins.get("schedule", ()), settings)

    def run(self, announce: Callable[[], None] = lambda: None) -> None:
        """From ``state.step`` to the end of the run.

        Args:
            announce: called once the callbacks know that the run starts.
        Raises:
            Preempted: asked to stop; the state is on disk.
            NumericsError: too many steps in a row that are not finite.
        """
        with self._reported(), self.watchdog.watching():
            announce()
            if self.watchdog.fault:
                self.callbacks.warn("stacks", step=self.state.step, message=self.watchdog.fault)
            self.train()
            self.complete()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Tells the callbacks that the run starts and, whatever happens in the block, how it ended.

        ``run_end`` has ``status`` ``finished``, ``preempted``, ``interrupted`` or ``failed``. An error in a callback at the
        end never hides the error that ended the run.
        """
        error: BaseException | None = None
        try:
            self.callbacks.run_start()
            yield
        except BaseException as caught:
            error = caught
            log.error("run ended: %s", caught, exc_info=not isinstance(caught, Preempted))
            raise
        finally:
            try:
                own = self.ranks.size == 1 and not isinstance(error, KeyboardInterrupt)
                if own or error is None or isinstance(error, _SHARED):
                    self.saver.settle(wait=True)
                else:
                    self.saver.abandon()
                why = {"reason": self._stop_reason} if isinstance(error, Preempted) else {}
                self.callbacks.emit("run_end", status=_status(error), **why, **self._totals())
                self.callbacks.run_end(error)
            except Exception:
                log.exception("a callback failed at the end of the run")
                if error is None:
                    raise

    def _totals(self) -> dict[str, object]:
        """What was done and used. ``tensor_memory``: most bytes that tensors had; ``planned_memory``, ``planned_seconds``: what
        the plan said of that and of one step of full rows, null where it could not."""
        state, device = self.state, self.context.device
        expected = self.context.plan.forecast or Forecast()
        return {
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": state.seconds,
            "peak_memory": device.peak_memory(),
            "tensor_memory": device.peak_tensors() + mapped_bytes(state.model),
            "planned_memory": expected.peak_memory,
            "planned_seconds": expected.step_seconds,
        }

    # ---- the loop
    def train(self) -> None:
        """All steps that are left."""
        state = self.state
        state.model.train()
        state.objective.batches_of = self.batches
        with self.watchdog.paused():
            self._begin()
        self._catch_up()
        while state.step < self.total_steps:
            self._check_limits()
            if self.stop_reason():
                self._preempt()
            if self.ended():
                break
            step, self._wish = state.step + 1, None
            if self.skipped.covers(step):
                state.step = step
            elif self._step(step):
                self.saver.step_took(self.last_metrics["seconds"])
            else:
                continue
            self.saver.settle(wait=False)
            better = due(step, self._eval.every) and step < self.total_steps and self.evaluate()
            if (self.saver.is_due(step, self._wish) or better) and step < self.total_steps:
                with self.watchdog.paused():
                    self.saver.save(state, background=self._checkpoint.background)

    def complete(self) -> None:
        """What is due once the last step is done: checkpoint, evaluation, ``model/`` or ``adapter/``."""
        step = self.state.step
        if step < self.total_steps and (reason := self.ended()):
            self.callbacks.emit("early_stop", step=step, total_steps=self.total_steps, reason=reason)
        if self._eval.best and self._evaluated != step:  # before the checkpoint, which holds what is the best
            self.evaluate()
        if self._checkpoint.final:
            with self.watchdog.paused():
                self.saver.save(self.state)
        if self._evaluated != step:
            self.evaluate()
        if self.stop_reason():
            self._preempt()
        if self._checkpoint.export:
            from erniecore.engine.training.recover import best_weights

            with self.watchdog.paused(), best_weights(self):
                self._export()

    def _catch_up(self) -> None:
        """The evaluation that a stop after this step cut short, where the best step depends on it."""
        step = self.state.step
        if self._eval.best and due(step, self._eval.every) and self.state.best.evaluated < step < self.total_steps:
            self.evaluate()  # the checkpoint of this step is there

    def ended(self) -> str:
        """Why training ends before its last step; empty: it goes on. The same on all ranks."""
        return self.state.ended or self.state.best.why_enough(self._eval)

    def _begin(self) -> None:
        """The objective's pass over all samples before the first step; what it returns becomes a ``begin`` event."""
        started = time.perf_counter()
        size = self._eval.batch_size or self._train.batch_size
        samples = every_sample(self.data, size, self.stop_reason)
        facts = self.state.objective.begin(samples, step=self.state.step, out=self.context.out)
        if facts:
            self.callbacks.emit("begin", step=self.state.step, **facts, seconds=time.perf_counter() - started)

    def _check_limits(self) -> None:
        """Ask for a stop where the settings want one; warn of what may end the run without asking."""
        self._memory.step()
        until, minutes = self._run.until, self._run.max_minutes
        if until and self.state.step >= until:
            self.stop.request(f"run.until={until}")
        elif minutes and time.monotonic() - self._started >= 60 * minutes:
            self.stop.request(f"run.max_minutes={minutes:g}")

    def _warn_of_memory(self, left: int, whole: int) -> None:
        says = f"{size_text(left)} of {size_text(whole)} of memory are left; the system ends processes when nothing is"
        advice = "`ernie runs stop` saves a checkpoint and ends the run"
        self.callbacks.warn("memory", step=self.state.step, message=f"{says}; {advice}")

    def stop_reason(self) -> str:
        """Why the run is to stop, asked of all ranks: the same answer on each, so they stop after the same step."""
        self.watchdog.heartbeat(f"after step {self.state.step}")
        mapped.check()  # zeros in place of weights are no error by themselves
        if not self._stop_reason:
            asked = self.state.ended or self.callbacks.view.asked
            self._stop_reason, self.state.ended = any_ranks(self.ranks, self.stop.reason, asked)
        return self._stop_reason

    # ---- one step
    def batches(self, step: int) -> list[Batch]:
        """Micro-batches of optimizer step ``step`` (1-based) on this rank."""
        return self.data.batches((step - 1) // self.state.repeats + 1)

    def _step(self, step: int) -> bool:
        """One optimizer step; False when the run went back to a checkpoint instead.

        Raises:
            NumericsError: too many bad steps in a row, and no checkpoint to go back to.
        """
        started = time.perf_counter()
        self.watchdog.heartbeat(f"in step {step}")
        self.callbacks.step_start(step)
        seed.seed_paddle(self._run.seed, seed.STEP, step)
        own = seed.derive_seed(self._run.seed, seed.OBJECTIVE, step)
        batches = self.state.objective.prepare(self.batches(step), step=step, seed=own)
        for batch in batches:
            guards.check_token_ids(batch, self.context.model.vocab_size)
        output = self._hook.ernie_forward_backward(run=self.callbacks.view, batches=batches)
        self.ranks.reduce_gradients(self.state.optimizer.slots)
        gradients = dict(self.state.optimizer.gradients())
        self._hook.ernie_gradients(run=self.callbacks.view, step=step, gradients=gradients)
        means, grad_norm, num_tokens = self._reduce(output)
        rate = learning_rate(step, self.total_steps, self._train, self._factor)
        try:
            applied = self._update(step, rate, means.get("loss", 0.0), grad_norm, batches)
        except NumericsError as error:
            from erniecore.engine.training.recover import roll_back

            with self.watchdog.paused():
                roll_back(self, error, batches)
            return False
        seconds = time.perf_counter() - started
        state = self.state
        state.step, state.tokens, state.seconds = step, state.tokens + num_tokens, state.seconds + seconds
        self._report(with_differences(means), rate, grad_norm, num_tokens, seconds, applied)
        return True

    def _reduce(self, output: StepOutput) -> tuple[dict[str, float], float, int]:
        """Means of the metrics, gradient norm and tokens of the whole step, over all ranks."""
        optimizer = self.state.optimizer
        squares = gradient_square_sum(optimizer, self.ranks.counts_parameter)
        own, (square_sum,) = metrics.read_sums(output.metrics, squares)
        sums, square_sum, num_tokens = combine(self.ranks, own, square_sum, output.num_tokens)
        return metrics.means(sums), math.sqrt(square_sum), num_tokens

    def _update(self, step: int, rate: float, loss: float, grad_norm: float, batches: Sequence[Batch]) -> bool:
        """Apply the gradients if the step is good, and drop them; whether they were applied. The first bad step of a series
        leaves its evidence."""
        state, optimizer = self.state, self.state.optimizer
        try:
            bad = state.guard.judge(step, loss, grad_norm, batches, optimizer.gradients())
        finally:
            if state.guard.first_bad == step and self.ranks.rank == 0:
                from erniecore.engine.training.recover import keep_evidence

                keep_evidence(self.context.out, self._run.seed, state, step, loss, grad_norm, batches)
        if bad is not None:
            self.callbacks.warn("numerics", step=step, **bad._asdict())
        else:
            optimizer.step(rate, guards.clip_scale(grad_norm, self._train.max_grad_norm))
            self.ranks.updated(optimizer.slots)
            # one collective for both questions
            name, self._wish = any_ranks(self.ranks, first_not_finite(optimizer), self.saver.wish())
            if name:
                state.guard.first_bad = step
                raise NumericsError(
                    f"step {step}: the update made this weight or state infinite or NaN; nothing of it was saved",
                    where=name,
                    found=f"learning rate {rate:.3g}, gradient norm {grad_norm:.3g}",
                    fix="lower train.learning_rate",
                )
            state.model.after_step(rate=rate)
            state.objective.after_step(step=step, rate=rate)
            if state.ema is not None:
                state.ema.update()
        optimizer.clear_gradients()
        return bad is None

    def _report(
        self, means: Mapping[str, float], rate: float, grad_norm: float, num_tokens: int, seconds: float, applied: bool
    ) -> None:
        """Collect further metrics and tell everybody. A step without loss tokens has no loss (null)."""
        state = self.state
        facts = {
            "loss": math.nan,
            **means,
            "lr": rate,
            "grad_norm": grad_norm,
            "tokens": num_tokens,
            "tokens_per_s": num_tokens / seconds,
            "seconds": seconds,
            "peak_memory": self.context.device.peak_memory(),
            **self.callbacks.collect_metrics(state.step),
        }
        if not applied:
            facts["skipped"] = 1
        self.last_metrics.update(facts)
        eta = (self.total_steps - state.step) * state.seconds / state.step
        # the event comes first: what `ernie_step_end` saves is never ahead of events.jsonl
        self.callbacks.emit("step", step=state.step, **facts, eta=eta)
        self.callbacks.step_end(state.step, facts)

    def evaluate(self) -> bool:
        """Loss on the eval split, if there is one, and what callbacks measure, with the averaged weights if there are any;
        whether it is the best so far. One that a stop cuts short does not count."""
        from erniecore.engine.scoring.evaluate import evaluate

        started, state, means = time.perf_counter(), self.state, dict[str, float]()
        with state.ema.applied() if state.ema is not None else nullcontext():
            if self.data.eval is not None:
                batches, limit = self.data.eval_batches(), self._eval.max_steps
                means = evaluate(state.objective, state.model, batches, limit, self.stop_reason, self.ranks)
                if not means:
                    return False
            with self.watchdog.paused():
                measured = self.callbacks.evaluate(state.step)
        means |= measured.metrics
        if not means or (self.callbacks.evaluators and self.stop_reason()):
            return False
        self._evaluated = state.step
        better = bool(self._eval.best) and state.best.observe(state.step, means, self._eval, measured.lower_is_better)
        best = {"best_step": state.best.step} if self._eval.best else {}
        self.callbacks.emit("eval", step=state.step, **means, **best, seconds=time.perf_counter() - started)
        self.last_metrics.update({f"eval/{name}": value for name, value in means.items()})
        return better

    # ---- leaving the straight way
    def _preempt(self) -> None:
        """Save and raise; the same command continues."""
        reason, step = self.stop_reason(), self.state.step
        with self.watchdog.paused():
            path = self.saver.save(self.state)
        self.stop.clear_control()
        raise Preempted(
            f"{told(reason)} after step {step} of {self.total_steps}; saved {path}", fix=self._resume_hint()
        )

    def _resume_hint(self) -> str:
        """What the user does to continue."""
        if self._run.until and self.state.step >= self._run.until:
            return "raise run.until, or leave it out, and run the same command"
        if self._run.resume in ("auto", "must"):
            return "the same command continues this run"
        return "continue with --resume auto instead of --resume never or --new"


def _status(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    table = {Preempted: "preempted", KeyboardInterrupt: "interrupted"}
    return next((status for kind, status in table.items() if isinstance(error, kind)), "failed")


def due(step: int, every: int) -> bool:
    """Whether something that happens every ``every`` steps (0: never) happens now."""
    return every > 0 and step % every == 0
