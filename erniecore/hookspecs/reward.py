"""Hooks of reward functions. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.completions import Completion


class RewardHooks:
    """Called on each reward function of the run, after each rollout."""

    @hookspec(firstresult=True)
    def ernie_compute_rewards(self, config: Section, completions: Sequence[Completion]) -> Sequence[float]:
        """One finite reward per completion, in their order. Methods with the capability ``"rewards"`` call it once per
        rollout on every rank. Pure: the reward of a completion does not depend on the others.

        Example::

            @hookimpl
            def ernie_compute_rewards(self, completions):
                return [float(c.content == c.reference) for c in completions]
        """
