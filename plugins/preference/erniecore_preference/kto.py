"""The objective over rated answers (KTO).

    L = (1 / N) Σ_rows loss(row)      N: rows of the whole step

The reference point is estimated from the rows of one micro-batch, so it depends on how a step is split: larger
micro-batches estimate it better, and one of a single row has none (0). All else is exact for any split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import Batch, LossOutput
from erniecore_preference.grouping import Answers, answers_of, mismatched
from erniecore_preference.losses import kto
from erniecore_preference.scoring import auxiliary_loss, log_probabilities, without_gradient

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_preference.scoring import Metrics


class KtoObjective:
    """See ``erniecore.api.Objective``.

    Args:
        config: the method's section. policy: a ``CausalLM``. reference: a frozen one.
    """

    #: positions per chunk of head and loss; the engine sets ``train.loss_chunk`` here
    loss_chunk = 1024
    #: the loss is no likelihood: it has no perplexity
    is_nll = False

    def __init__(self, config: Any, policy: Any, reference: Any) -> None:
        self.config, self.policy, self.reference = config, policy, reference

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``rows``, of which ``desirable`` and ``undesirable``; ``seen``: all tokens but padding."""
        rejected = answers_of(batch).rejected
        counts = {"rows": len(rejected), "desirable": (~rejected).sum(), "undesirable": rejected.sum()}
        return {**{name: float(value) for name, value in counts.items()}, "seen": float(batch.num_tokens)}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss and metrics of one micro-batch."""
        answers = answers_of(batch)
        policy, auxiliary = log_probabilities(self.policy, batch, answers, self.loss_chunk)
        extra, metrics = auxiliary_loss(auxiliary, batch, totals["seen"])
        if not len(answers):
            return LossOutput(loss=policy.sum().astype("float32"), metrics={"loss": (0.0, 0.0)})
        reference = without_gradient(self.reference, batch, answers, self.loss_chunk)
        kl = self.reference_point(batch)
        desirable = paddle.to_tensor(~answers.rejected)
        losses, rewards = kto(policy - reference, desirable, kl, self.config)
        metrics.update(self._measured(policy.detach(), rewards, kl, answers, totals))
        metrics["loss"] = losses.detach().sum(), float(len(answers))
        loss = (losses.sum() / totals["rows"]).astype("float32")
        return LossOutput(loss=loss if extra is None else loss + extra, metrics=metrics)

    def reference_point(self, batch: Batch) -> Tensor:
        """max(0, mean of log π - log π0 over mismatched pairs), a float64 scalar without gradient."""
        pairs = mismatched(batch) if self.config.kl == "mismatched" else None
        if pairs is None:
            return paddle.zeros([], "float64")
        answers = answers_of(pairs)
        ours, theirs = (without_gradient(m, pairs, answers, self.loss_chunk) for m in (self.policy, self.reference))
        return (ours - theirs).mean().clip(min=0.0)

    def _measured(
        self, policy: Tensor, rewards: Tensor, kl: Tensor, answers: Answers, totals: Mapping[str, float]
    ) -> Metrics:
        """``chosen`` stands for desirable rows and ``rejected`` for the others; ``rewards/accuracies``: the share of
        rows on the right side of the reference point; ``rewards/margins``: mean reward of desirable rows less that of
        the others, over the whole step, where it has both."""
        n = float(len(answers))
        sign = np.where(answers.rejected, -1.0, 1.0)
        right = paddle.to_tensor(sign) * (rewards - self.config.beta * kl) > 0
        metrics: Metrics = {"kl": (kl * n, n), "rewards/accuracies": (right.astype("float64").sum(), n)}
        margin = paddle.zeros([], "float64")
        for name, kind, chosen in (
            ("chosen", "desirable", ~answers.rejected),
            ("rejected", "undesirable", answers.rejected),
        ):
            mask, count = paddle.to_tensor(chosen.astype("float64")), float(chosen.sum())
            metrics[f"rewards/{name}"] = (rewards * mask).sum(), count
            metrics[f"logps/{name}"] = (policy * mask).sum(), count
            margin = margin + (rewards * mask).sum() * ((1 if name == "chosen" else -1) / (totals[kind] or 1.0))
        both = bool(totals["desirable"] and totals["undesirable"])
        metrics["rewards/margins"] = margin * totals["rows"], n if both else 0.0
        return metrics
