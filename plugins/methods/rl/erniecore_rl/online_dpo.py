"""The objective of online DPO: of the completions to a prompt, the one with the highest reward is preferred to the one with
the lowest, and the pair is learned from as in DPO,

    L = (1 / N) Σ_pairs -log σ(beta z)        z = log (π / π_ref)(better | x) - log (π / π_ref)(worse | x)

with N pairs in a step. A group whose rewards are equal has no pair. Guo et al., "Direct Language Model Alignment from Online AI
Feedback" (2024), arXiv:2402.04792, algorithm 1, which samples two completions; the loss is equation 7 of Rafailov et al. (2023),
arXiv:2305.18290.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api.method import Batch
from erniecore_rl import batches as laid
from erniecore_rl.batches import Completions, TrainedCompletion
from erniecore_rl.prompts import Prompt
from erniecore_rl.rollouts import ScoredRollouts
from erniecore_rl.upo import UpoObjective, best_and_worst

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_rl.objective import Metrics


class OnlineDpoObjective(UpoObjective):
    """See :class:`GrpoObjective`. Only the completions of pairs are kept."""

    def _completions(self, group: int, prompt: Prompt, scored: ScoredRollouts) -> list[TrainedCompletion]:
        sides, rollouts = best_and_worst(scored.rewards[group], self._learned(scored, group)), scored.group(group)
        return [laid.sampled(prompt.ids, rollouts[i], 0.0, int(sides[i])) for i in np.flatnonzero(sides).tolist()]

    def _models(self) -> Sequence[tuple[str, Any]]:
        return (("reference", self.reference),)

    def _loss(
        self, log_probs: Tensor, batch: Batch, completions: Completions, totals: Mapping[str, float]
    ) -> tuple[Tensor, Metrics]:
        """The mean over the pairs of the step, and the metrics of :meth:`_pairs`."""
        loss, metrics = self._pairs(log_probs, batch, completions)
        return loss / totals["pairs"], metrics
