"""Hooks of training methods, and the step that a pipeline replaces. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.model import Layer
    from erniecore.types.run import Objective, StepOutput
    from erniecore.types.samples import Batch, Encoder
    from erniecore.types.text import Tokenizer


class MethodHooks:
    """One provider: the method of the run. ``ernie_forward_backward`` has a default in the core."""

    @hookspec(firstresult=True)
    def ernie_build_objective(
        self, config: Section, policy: Layer, reference: Layer | None, tokenizer: Tokenizer
    ) -> Objective:
        """The loss over ``policy``, and what else a method does in a step (see ``Objective``).

        ``reference`` is a frozen copy when the plugin has ``MethodCapability.REFERENCE`` and the source of its section's
        ``reference_use()`` is ``live``, else None.

        Example::

            @hookimpl
            def ernie_build_objective(self, config, policy):
                return MyObjective(config, policy)
        """

    @hookspec(firstresult=True)
    def ernie_build_encoder(self, config: Section, tokenizer: Tokenizer, max_length: int, too_long: str) -> Encoder:
        """How one record becomes samples of at most ``max_length`` tokens. No paddle; also used by ``ernie data``.
        ``too_long`` is ``data.too_long``; where the hook does not take it, only ``auto`` may be chosen.

        Example::

            @hookimpl
            def ernie_build_encoder(self, config, tokenizer, max_length):
                return MyEncoder(tokenizer, max_length)
        """

    @hookspec(firstresult=True)
    def ernie_forward_backward(self, run: Any, batches: Sequence[Batch]) -> StepOutput:
        """Forward and backward of one optimizer step over its micro-batches. The core's own implementation is
        ``trylast``; a pipeline replaces it. Called once per step on every rank.

        Example::

            @hookimpl
            def ernie_forward_backward(self, run, batches):
                return my_schedule(run.objective, batches)
        """
