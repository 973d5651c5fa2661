"""The objective of unified preference optimization: the policy gradient of ``objective.py`` and a DPO term over pairs,

    L = L_GRPO + pair_weight (1 / N) Σ_pairs -log σ(beta z)        N: pairs of the step

where z is the log-ratio of the better completion to the initial model less that of the worse one. Pairs are the best and the
worst completion of a group (online), or come with the data (offline). ERNIE 4.5 technical report (2025), section 4: PPO
with a pairwise term; its weights are not published, so ``pair_weight`` is to be chosen, and groups stand in for a critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_preference.config import DpoConfig
from erniecore_preference.encoder import CHOSEN, REJECTED
from erniecore_preference.losses import Pairs, dpo

from erniecore.api.method import Batch, Tokenizer
from erniecore_rl.advantages import SAME
from erniecore_rl.batches import Completions, TrainedCompletion, completions_of, given
from erniecore_rl.objective import GrpoObjective
from erniecore_rl.prompts import Prompt
from erniecore_rl.rollouts import ScoredRollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    from erniecore_rl.objective import Metrics


class UpoObjective(GrpoObjective):
    """See :class:`GrpoObjective`; ``reference`` is None only where the pairs count nothing."""

    def __init__(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> None:
        super().__init__(config, policy, reference, tokenizer)
        self.dpo = DpoConfig(beta=config.beta, label_smoothing=config.label_smoothing)

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """Those of the policy gradient, and ``pairs``."""
        found = dict(super().normalizers(batch))
        if "side" in batch.fields:
            found["pairs"] = float((completions_of(batch).side == CHOSEN).sum())
        return found

    def _completions(self, group: int, prompt: Prompt, scored: ScoredRollouts) -> list[TrainedCompletion]:
        completions = super()._completions(group, prompt, scored)
        if prompt.rejected is not None:
            completions += [given(prompt.chosen, CHOSEN), given(prompt.rejected, REJECTED)]
        return completions

    def _sides(self, rewards: NDArray[np.float64], learned: NDArray[np.bool_]) -> NDArray[np.int8]:
        return best_and_worst(rewards, learned) if self.config.pairs == "online" else super()._sides(rewards, learned)

    def _loss(
        self, log_probs: Tensor, batch: Batch, completions: Completions, totals: Mapping[str, float]
    ) -> tuple[Tensor, Metrics]:
        """The policy gradient and the pairs."""
        loss, metrics = super()._loss(log_probs, batch, completions, totals)
        if not self.config.pair_weight or not (completions.side == CHOSEN).any():
            return loss, metrics
        pairs, more = self._pairs(log_probs, batch, completions)
        return loss + pairs * (self.config.pair_weight / totals["pairs"]), {**metrics, **more}

    def _pairs(self, log_probs: Tensor, batch: Batch, completions: Completions) -> tuple[Tensor, Metrics]:
        """The sum of the DPO term over the pairs; metrics ``pairs/loss``, ``pairs/accuracy`` and ``pairs/margin`` per pair."""
        chosen, rejected = (np.flatnonzero(completions.side == side) for side in (CHOSEN, REJECTED))
        owner = paddle.to_tensor(completions.owner)
        ours = paddle.geometric.segment_sum(log_probs, owner)
        theirs = paddle.geometric.segment_sum(self._field(batch, "reference", completions), owner)
        lengths = paddle.to_tensor(completions.lengths.astype("float64"))
        better, worse = paddle.to_tensor(chosen), paddle.to_tensor(rejected)
        parts = [x.gather(index) for x in (ours, theirs, lengths) for index in (better, worse)]
        scored = dpo(Pairs(*parts), self.dpo)
        margin, n = scored.chosen_reward - scored.rejected_reward, float(len(chosen))
        metrics: Metrics = {
            "pairs/loss": (scored.loss.detach().sum(), n),
            "pairs/accuracy": ((margin > 0).astype("float64").sum(), n),
            "pairs/margin": (margin.sum(), n),
        }
        return scored.loss.sum(), metrics


def best_and_worst(rewards: NDArray[np.float64], usable: NDArray[np.bool_]) -> NDArray[np.int8]:
    """int8 [G]: CHOSEN at the best usable completion of a group, REJECTED at its worst one, else 0; all 0 in a group without a
    difference. Of equal completions the first is taken."""
    sides = np.zeros(len(rewards), np.int8)
    best = int(np.argmax(np.where(usable, rewards, -np.inf)))
    worst = int(np.argmin(np.where(usable, rewards, np.inf)))
    if usable.any() and rewards[best] - rewards[worst] > SAME:
        sides[best], sides[worst] = CHOSEN, REJECTED
    return sides
