"""The focal loss (Lin et al., 2017, arXiv:1708.02002), averaged over the loss tokens of the whole step.

    loss = (1 / N) sum over learned t of  -(1 - p(y_t))^gamma log p(y_t)

The factor is part of the graph: its gradient is that of the formula, not of a constant weight.

Letters: B batch, S sequence, T learned positions, H hidden, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

from erniecore.api.method import IGNORE, Batch, LossOutput, Objective


class FocalObjective(Objective):
    """See ``erniecore.api.Objective``.

    Args:
        policy: a ``CausalLM``.
        gamma: 0 is the mean negative log-likelihood.
    """

    def __init__(self, policy: Any, *, gamma: float = 2.0) -> None:
        self.policy, self.gamma = policy, gamma

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``tokens``: the number of loss tokens."""
        return {"tokens": float((batch.labels != IGNORE).sum())}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Forward pass and loss of one micro-batch; only learned positions reach the head."""
        features = self.policy.features(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
        )
        labels = batch.labels.reshape(-1)
        learned = np.flatnonzero(labels != IGNORE)
        hidden_TH = features.hidden.reshape([-1, features.hidden.shape[-1]]).index_select(paddle.to_tensor(learned))
        logits_TV = self.policy.logits(hidden_TH)
        nll_T = F.cross_entropy(logits_TV, paddle.to_tensor(labels[learned]), reduction="none").squeeze(-1)
        total = (focal_weight(nll_T, self.gamma) * nll_T).sum()
        count = float(len(learned))
        metrics = {"loss": (total.detach(), count), "nll": (nll_T.detach().sum(), count)}
        return LossOutput(total / (totals["tokens"] or 1.0), metrics)


def focal_weight(nll_T: Tensor, gamma: float) -> Tensor:
    """(1 - p)^gamma with p = exp(-nll); 1 - p is at least 1e-6, where the power of a small gamma has no slope."""
    return (1 - paddle.exp(-nll_T)).clip(min=1e-6) ** gamma
