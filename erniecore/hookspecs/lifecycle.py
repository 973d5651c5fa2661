"""Hooks that tell of a run as it goes; the rules are in ``erniecore/hookspecs/__init__.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.types.model import Tensor
    from erniecore.types.run import Evaluation, RunView


class LifecycleHooks:
    """Hooks with any number of implementations: every selected plugin and every callback may have them.

    They are called on every rank unless said otherwise; an exception stops the run. Order: built-in callbacks,
    then the run's plugins, then callbacks in the order given. Wrap with ``@hookimpl(wrapper=True)``.
    """

    @hookspec
    def ernie_check_settings(self, settings: Any) -> None:
        """Once, after validation and before paddle is imported; may raise ``ConfigError.at(key, message)``.

        Sees the whole frozen settings, to check combinations; never changes them."""

    @hookspec
    def ernie_run_start(self, run: RunView) -> None:
        """Once, after everything is built and before the first step (also when resuming)."""

    @hookspec
    def ernie_step_start(self, run: RunView, step: int) -> None:
        """Before each optimizer step; ``step`` is 1-based."""

    @hookspec
    def ernie_gradients(self, run: RunView, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Once per optimizer step, after the gradients are summed over its micro-batches and all ranks, and before their norm is
        taken and clipped: name -> gradient of what this rank updates, which may be changed in place. Sharded parameters are here
        in parts, so an elementwise change is the same in every layout.

        Example::

            @hookimpl
            def ernie_gradients(self, gradients):
                for name, gradient in gradients.items():
                    if name.endswith(".gate"):
                        gradient.clip_(-0.01, 0.01)
        """

    @hookspec
    def ernie_collect_metrics(self, run: RunView, step: int) -> Mapping[str, float]:
        """After each optimizer step; what is returned joins the step's metrics (names like ``moe/max_load``)."""

    @hookspec
    def ernie_step_end(self, run: RunView, step: int, metrics: Mapping[str, float]) -> None:
        """After each optimizer step, with all its metrics, when its ``step`` event has been written."""

    @hookspec
    def ernie_evaluate(self, run: RunView, step: int) -> Evaluation | None:
        """With each evaluation of a run (`eval.every`, and at the end), after the loss on held-out rows if there are any; the
        model has its averaged weights where the run averages. ``None``: nothing is measured this time. The metrics join the
        ``eval`` event, and an ``evaluation`` event says what it took. A plugin that lets the model compute has the capability
        ``computes``. May raise ``ErnieError``, on all ranks alike.

        Example::

            @hookimpl
            def ernie_evaluate(self, run, step):
                squares = sum(float((p**2).sum()) for p in run.model.parameters())
                return Evaluation({"acme/norm": squares**0.5}, lower_is_better=frozenset({"acme/norm"}))
        """

    @hookspec
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        """For every event of the run (``run_start``, ``step``, ``eval``, ``checkpoint``, ``warning``, ``run_end``, …); main rank
        only. ``events`` writes them to a file, ``console`` shows them."""

    @hookspec
    def ernie_checkpoint_saved(self, run: RunView, path: Path) -> None:
        """After a checkpoint is complete on disk; main rank only."""

    @hookspec
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        """Once, at the end, whatever happened."""
