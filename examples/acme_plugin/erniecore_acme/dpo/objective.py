"""Direct preference optimization (Rafailov et al., 2023, arXiv:2305.18290) with a margin m:

    loss = -(1 / N) sum over pairs of  log sigmoid(beta ((c - c0) - (r - r0)) - m)

c and r are the log-probabilities of the preferred and the rejected completion under the policy, c0 and r0 under the
reference; N counts the pairs of the whole step.

Letters: B batch, S sequence, T loss tokens, A completions (the two of a pair follow each other).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

from erniecore.api.method import IGNORE, Batch, LossOutput, Objective


class AcmeDpoObjective(Objective):
    """See ``erniecore.api.Objective``.

    Args:
        policy, reference: two ``CausalLM``; the reference is frozen.
    """

    is_nll = False

    def __init__(self, policy: Any, reference: Any, *, beta: float = 0.1, margin: float = 0.0) -> None:
        self.policy, self.reference, self.beta, self.margin = policy, reference, beta, margin

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``pairs``: one per sample."""
        return {"pairs": float(batch.num_samples)}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch."""
        where, owner = completions_of(batch)
        if not len(where):
            zero = paddle.zeros([])
            return LossOutput(zero, {"loss": (zero, 0.0)})
        with paddle.no_grad():
            before = log_probabilities(self.reference, batch, where, owner)
        gained = log_probabilities(self.policy, batch, where, owner) - before
        logits = self.beta * (gained[::2] - gained[1::2]) - self.margin
        total = -F.log_sigmoid(logits).sum()
        count = float(batch.num_samples)
        right = (logits.detach() > -self.margin).astype("float32").sum()
        metrics = {"loss": (total.detach(), count), "accuracy": (right, count)}
        return LossOutput(total / (totals["pairs"] or 1.0), metrics)


def completions_of(batch: Batch) -> tuple[Any, Any]:
    """Positions of loss tokens in the flattened batch, and the number of the completion of each; both int64 [T]."""
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    sides = batch.fields["completion"].reshape(-1)[where]
    changes = np.flatnonzero(np.diff(sides)) + 1
    owner = np.zeros(len(where), np.int64)
    owner[changes] = 1
    return where, owner.cumsum()


def log_probabilities(model: Any, batch: Batch, where: Any, owner: Any) -> Tensor:
    """Of each completion, summed over its tokens, float32 [A]; only loss tokens reach the head."""
    features = model.features(
        paddle.to_tensor(batch.input_ids),
        position_ids=paddle.to_tensor(batch.position_ids),
        startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
    )
    hidden_TH = features.hidden.reshape([-1, features.hidden.shape[-1]]).index_select(paddle.to_tensor(where))
    labels_T = paddle.to_tensor(batch.labels.reshape(-1)[where])
    nll_T = F.cross_entropy(model.logits(hidden_TH), labels_T, reduction="none").squeeze(-1)
    return -paddle.geometric.segment_sum(nll_T, paddle.to_tensor(owner))
