"""The objective of distillation, over the loss tokens of conversations:

    L = (1 / N) Σ_t [ alpha T² D(teacher_t, student_t) + (1 - alpha) (-log p(label_t | tokens ≤ t)) ]

N: loss tokens of the whole step, D: ``method.divergence`` of both models' distributions at temperature T, whose
gradients shrink with 1 / T²: the factor keeps the two terms in proportion (Hinton et al., arXiv:1503.02531). Losses of
routers and of multi-token prediction add their gradient as in fine-tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api.method import IGNORE, Batch
from erniecore.api.training import NextTokenObjective
from erniecore_distill.chunked import Comparison, Head, compared

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_distill.config import DistillConfig
    from erniecore_distill.teachers import Teacher


class DistillObjective(NextTokenObjective):
    """See ``erniecore.api.Objective``.

    Args:
        config: the method's section. policy: the student. teacher: its target distributions.
    """

    #: the loss is no likelihood: it has no perplexity
    is_nll = False

    def __init__(self, config: DistillConfig, policy: Any, teacher: Teacher) -> None:
        super().__init__(policy, mtp_weight=config.mtp_weight)
        self.teacher, self.alpha = teacher, config.alpha
        self.comparison = Comparison(config.divergence, config.beta, config.temperature)

    def main_loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]]:
        """The sum over learned positions; metrics ``kl`` (the divergence per token, without T²), ``sft_loss`` and
        ``teacher/agreement``, the share of tokens that both find most likely."""
        (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
        learned = float(len(where))
        rows, head = hidden.reshape([-1, hidden.shape[-1]]), Head(*self.policy.head())
        if not learned:
            return rows[:0].sum() + head.weight[:0].sum(), {}
        labels = paddle.to_tensor(batch.labels.reshape(-1)[where])
        teaching = self.teacher.teaching(batch, self.loss_chunk)
        nll, divergence, agreed = compared(
            rows.gather(paddle.to_tensor(where)),
            head,
            labels,
            teaching,
            self.comparison,
            self.loss_chunk,
        )
        scale = self.alpha * self.comparison.temperature**2
        total = scale * divergence + (1 - self.alpha) * nll
        return total, {
            "kl": (divergence.detach(), learned),
            "sft_loss": (nll.detach(), learned),
            "teacher/agreement": (agreed, learned),
        }
