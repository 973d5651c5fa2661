"""The objective over pairs, for every loss of ``losses.py``:

    L = (1 / N) Σ_pairs loss(pair) + sft_weight (1 / M) Σ_pairs (-c)      N: pairs, M: tokens of chosen completions

N and M are those of the whole step. Policy and reference see each row once, prompt and both completions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api.method import Batch, LossOutput
from erniecore_preference.grouping import Completions, completions_of
from erniecore_preference.losses import OVER_STEPS, PairLoss, Pairs, Scored
from erniecore_preference.reference import ReferenceObjective
from erniecore_preference.scoring import auxiliary_loss, log_probabilities, without_gradient

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_preference.scoring import Metrics


#: constant field of a batch: mean log-ratios of the step's preferred and rejected completions
POINTS = "reference_points"


class PairObjective(ReferenceObjective):
    """See ``erniecore.api.Objective``.

    Args:
        loss: of ``losses.LOSSES``. config: the method's section.
        policy: a ``CausalLM``. reference: a frozen one, or None for a uniform reference.
    """

    per_sample = 2

    def __init__(self, loss: PairLoss, config: Any, policy: Any, reference: Any = None) -> None:
        super().__init__(config, policy, reference)
        self.loss = loss
        self.normalization = config.normalization()

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The same batches; with the mean log-ratios of them all, on all ranks, where the loss needs them and a batch alone
        cannot tell."""
        if self.loss not in OVER_STEPS or (len(batches) == 1 and len(self.all_gather_object(None)) == 1):
            return batches
        sums = np.zeros(3)
        for batch in batches:
            completions = completions_of(batch)
            policy = without_gradient(self.policy, batch, completions, self.loss_chunk)
            pairs = self._pairs(policy, batch, completions).normalized(self.normalization)
            sums += [float(pairs.chosen_ratio.sum()), float(pairs.rejected_ratio.sum()), len(completions) / 2]
        *ratios, count = self.summed(sums.tolist())
        points = np.array(ratios) / max(count, 1)
        return [replace(b, fields={**b.fields, POINTS: np.tile(points, (*b.input_ids.shape, 1))}) for b in batches]

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``pairs``; ``chosen``: tokens of chosen completions; ``seen``: all tokens but padding."""
        completions = completions_of(batch)
        return {
            "pairs": len(completions) / 2,
            "chosen": float(completions.lengths[0::2].sum()),
            "seen": float(batch.num_tokens),
        }

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss and metrics of one micro-batch, see :func:`measured`."""
        completions = completions_of(batch)
        policy, auxiliary = log_probabilities(self.policy, batch, completions, self.loss_chunk)
        extra, metrics = auxiliary_loss(auxiliary, batch, totals["seen"])
        pairs = self._pairs(policy, batch, completions)  # the reference's pass too, in which other ranks may take part
        if not len(completions):
            return LossOutput(loss=policy.sum().astype("float32"), metrics={"loss": (0.0, 0.0)})
        scored = self.loss(pairs.normalized(self.normalization), self.config)
        loss = scored.loss.sum() / totals["pairs"]
        if self.config.sft_weight:
            loss = loss - pairs.chosen.sum() * (self.config.sft_weight / totals["chosen"])
        metrics.update(measured(pairs, scored))
        metrics["loss"] = loss.detach() * totals["pairs"], len(completions) / 2
        loss = loss.astype("float32")
        return LossOutput(loss=loss if extra is None else loss + extra, metrics=metrics)

    def _pairs(self, policy: Tensor, batch: Batch, completions: Completions) -> Pairs:
        reference = self.referred(batch, completions)
        lengths = paddle.to_tensor(completions.lengths.astype("float64"))
        margin = None
        if "margin" in batch.fields:
            margin = paddle.to_tensor(batch.fields["margin"].reshape(-1)[completions.first[0::2]].astype("float64"))
        points = None
        if POINTS in batch.fields:
            points = tuple(batch.fields[POINTS].reshape(-1, 2)[0].tolist())
        sides = policy[0::2], policy[1::2], reference[0::2], reference[1::2], lengths[0::2], lengths[1::2]
        return Pairs(*sides, margin, points)


def measured(pairs: Pairs, scored: Scored) -> Metrics:
    """Metrics as (sum, weight): ``rewards/*`` per pair, ``logps/*`` summed log-probabilities under the policy,
    ``sft_loss`` negative log-likelihood per token of chosen completions, ``kl`` where the loss has a reference point."""
    n, better = float(pairs.chosen.shape[0]), scored.chosen_reward > scored.rejected_reward
    means = {
        "rewards/chosen": scored.chosen_reward,
        "rewards/rejected": scored.rejected_reward,
        "rewards/margins": scored.chosen_reward - scored.rejected_reward,
        "rewards/accuracies": better.astype("float64"),
        "logps/chosen": pairs.chosen,
        "logps/rejected": pairs.rejected,
    }
    metrics: Metrics = {name: (value.detach().sum(), n) for name, value in means.items()}
    metrics["sft_loss"] = -pairs.chosen.detach().sum(), float(pairs.chosen_length.sum())
    if scored.kl is not None:
        metrics["kl"] = scored.kl * n, n
    return metrics
