"""The objective of REINFORCE leave-one-out: a completion is one action, and its baseline is the mean reward of the others to
the same prompt,

    L = (1 / N) Σ_completions -min(r A, clip(r, 1 - low, 1 + high) A)        A_i = R_i - mean of R_j, j ≠ i
    R_i = reward_i - kl · (log π0(y_i | x) - log π_ref(y_i | x))              r = π(y_i | x) / π0(y_i | x)

with π0 the policy that sampled and N completions in a step. In the first update of a rollout r is 1, and the gradient is that
of REINFORCE, -A ∇ log π(y_i | x). Ahmadian et al., "Back to Basics: Revisiting REINFORCE-Style Optimization for Learning from
Human Feedback in LLMs" (2024), arXiv:2402.14740; the clipping of further updates is PPO's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api.method import Batch
from erniecore_rl import batches as laid
from erniecore_rl.advantages import leave_one_out
from erniecore_rl.batches import Completions, TrainedCompletion, completions_of
from erniecore_rl.losses import completion_ratio, per_sequence
from erniecore_rl.objective import GrpoObjective
from erniecore_rl.prompts import Prompt
from erniecore_rl.rollouts import ScoredRollouts

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_rl.objective import Metrics


class RlooObjective(GrpoObjective):
    """See :class:`GrpoObjective`; ``reference`` is None where ``kl`` is 0. All completions of a group are learned from."""

    def _completions(self, group: int, prompt: Prompt, scored: ScoredRollouts) -> list[TrainedCompletion]:
        advantages = leave_one_out(scored.rewards[group : group + 1])[0].tolist()
        return [laid.sampled(prompt.ids, *pair) for pair in zip(scored.group(group), advantages, strict=True)]

    def _with_log_probs(self, batch: Batch) -> Batch:
        """The divergence belongs to the rewards, so the advantages change with it. A group is complete and in one micro-batch."""
        batch = super()._with_log_probs(batch)
        if not self.config.kl:
            return batch
        completions = completions_of(batch)
        old, reference, advantage = (
            batch.fields[name].reshape(-1)[completions.where] for name in ("old", "reference", "advantage")
        )
        per_completion = np.bincount(completions.owner, old - reference).astype(np.float64)
        divergence = per_completion.reshape(-1, self.config.group_size)
        penalty = self.config.kl * leave_one_out(divergence).reshape(-1)[completions.owner]
        return laid.with_field(batch, "advantage", completions.where, advantage - penalty)

    def _loss(
        self, log_probs: Tensor, batch: Batch, completions: Completions, totals: Mapping[str, float]
    ) -> tuple[Tensor, Metrics]:
        """The scalar loss, and the metrics of ``_clipped`` with ``kl``: log π0 - log π_ref per token at the rollout."""
        # 1 / length for each token: a completion has the ratio of all its tokens once
        weights = per_sequence(completions.lengths, self.config.max_new_tokens, totals)
        loss, metrics = self._clipped(log_probs, batch, completions, completion_ratio, weights)
        if self.config.kl:
            fields = batch.fields["old"] - batch.fields["reference"]
            metrics["kl"] = float(fields.reshape(-1)[completions.where].sum()), float(len(completions.where))
        return loss, metrics
