"""The objective of the adversarial method:

    L = (lm_weight / N) Σ_t −log p(label_t)  +  (weight / J) Σ_j −log P(y_j | h_j)

N: tokens of natural text that have a label, J: texts, each judged from the hidden state h of the marker at its end by the model's
``score`` head; y: whether people wrote it. Generated text teaches nothing about the next token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_reward.objective import read

from erniecore.api import PluginError
from erniecore.api.layers import child
from erniecore.api.method import IGNORE, Batch, LossOutput
from erniecore.api.training import NextTokenObjective
from erniecore_adversarial.encoder import NATURAL
from erniecore_adversarial.losses import adversarial_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor


class AdversarialObjective(NextTokenObjective):
    """See ``erniecore.api.Objective``.

    Args:
        policy: a ``CausalLM`` with a ``score`` head. weight, lm_weight: as in the settings.

    Raises:
        PluginError: the model has no score head.
    """

    #: the loss is no likelihood of text alone
    is_nll = False

    def __init__(self, policy: Any, *, weight: float = 1.0, lm_weight: float = 1.0) -> None:
        super().__init__(policy, mtp_weight=0.0)
        if child(policy, "score") is None:
            raise PluginError(
                "the model has no score head",
                expected="a model that an adversarial run has trained",
                fix="train one with --method adversarial, or name its directory",
            )
        self.weight, self.lm_weight = weight, lm_weight
        self._judged: tuple[Tensor, dict[str, tuple[Tensor | float, float]]] | None = None

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``tokens``: labels of natural text; ``judged``: texts; ``seen``: all tokens but padding."""
        return {**super().normalizers(_without_markers(batch)), "judged": float((batch.fields["judged"] > 0).sum())}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``loss``, ``lm_loss`` per token, ``adversarial_loss`` and ``accuracy`` per text, of
        which ``accuracy/natural`` and ``accuracy/generated`` are the shares of either."""
        output = super().__call__(_without_markers(batch), totals)
        assert self._judged is not None
        (losses, measured), self._judged = self._judged, None
        loss = self.lm_weight * output.loss + self.weight * losses.astype(output.loss.dtype) / (totals["judged"] or 1.0)
        count = measured["adversarial_loss"][1]
        metrics = {name: value for name, value in output.metrics.items() if name != "loss"}
        metrics |= {"lm_loss": output.metrics["loss"], **measured}
        # the loss has two denominators: as a sum over texts, what it is per text of the step
        metrics["loss"] = loss.detach() * (totals["judged"] or 1.0), count
        return LossOutput(loss=loss, metrics=metrics)

    def main_loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]]:
        """That of the next token; judges from the same hidden states beside it."""
        self._judged = self._judge(hidden, batch.fields["judged"].reshape(-1))
        return super().main_loss(hidden, batch)

    def _judge(
        self, hidden: Tensor, judged: NDArray[np.int8]
    ) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]]:
        (where,) = np.nonzero(judged)
        rows = hidden.reshape([-1, hidden.shape[-1]])
        if not len(where):
            return rows[:0].sum(), {"adversarial_loss": (0.0, 0.0)}
        natural = judged[where] == NATURAL
        scores = read(self.policy, rows.gather(paddle.to_tensor(where)))
        losses = adversarial_losses(scores, paddle.to_tensor(natural.astype(np.float64)))
        right = (scores.detach() > 0) == paddle.to_tensor(natural)
        metrics: dict[str, tuple[Tensor | float, float]] = {
            "adversarial_loss": (losses.detach().sum(), float(len(where))),
            "accuracy": (right.astype("float32").sum(), float(len(where))),
        }
        for name, chosen in (("natural", natural), ("generated", ~natural)):
            kept = paddle.to_tensor(chosen.astype(np.float32))
            metrics[f"accuracy/{name}"] = (right.astype("float32") * kept).sum(), float(chosen.sum())
        return losses.sum(), metrics


def _without_markers(batch: Batch) -> Batch:
    """The batch with labels for the likelihood alone."""
    return replace(batch, labels=np.where(batch.fields["judged"] > 0, IGNORE, batch.labels))
