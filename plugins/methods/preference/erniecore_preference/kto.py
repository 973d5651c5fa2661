"""The objective over rated completions (KTO).

    L = (1 / N) Σ_rows loss(row)      N: rows of the whole step

The reference point is estimated from all rows of a step before its first micro-batch, as the paper estimates it from
those of a batch; with that the loss does not depend on how a step is split. An evaluation, which has no steps, estimates
it from each of its batches (of all ranks). A single row has none (0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253

from erniecore.api.method import Batch, LossOutput
from erniecore_preference.grouping import Completions, completions_of, mismatched, told_completions
from erniecore_preference.losses import kto
from erniecore_preference.reference import ReferenceObjective
from erniecore_preference.scoring import auxiliary_loss, log_probabilities, without_gradient

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_preference.scoring import Metrics


#: constant field of a batch: the step's reference point
POINT = "reference_point"


class KtoObjective(ReferenceObjective):
    """The KTO loss over unpaired preferences."""

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The same batches, with the reference point of them all."""
        if self.config.kl != "mismatched":
            return batches
        point = self.reference_point(batches)
        constant = [np.full(batch.input_ids.shape, point, np.float64) for batch in batches]
        return [replace(b, fields={**b.fields, POINT: c}) for b, c in zip(batches, constant, strict=True)]

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``rows``, of which ``desirable`` and ``undesirable``; ``seen``: all tokens but padding."""
        rejected = completions_of(batch).rejected
        counts = {"rows": len(rejected), "desirable": (~rejected).sum(), "undesirable": rejected.sum()}
        return {**{name: float(value) for name, value in counts.items()}, "seen": float(batch.num_tokens)}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss and metrics of one micro-batch."""
        completions = completions_of(batch)
        policy, auxiliary = log_probabilities(self.policy, batch, completions, self.loss_chunk)
        extra, metrics = auxiliary_loss(auxiliary, batch, totals["seen"])
        reference = self.referred(batch, completions)  # its pass too, in which other ranks may take part
        known = POINT in batch.fields
        kl = paddle.to_tensor(float(batch.fields[POINT].flat[0]) if known else self.reference_point([batch]), "float64")
        if not len(completions):
            return LossOutput(loss=policy.sum().astype("float32"), metrics={"loss": (0.0, 0.0)})
        desirable = paddle.to_tensor(~completions.rejected)
        losses, rewards = kto(policy - reference, desirable, kl, self.config)
        metrics.update(self._measured(policy.detach(), rewards, kl, completions))
        metrics["loss"] = losses.detach().sum(), float(len(completions))
        loss = (losses.sum() / totals["rows"]).astype("float32")
        return LossOutput(loss=loss if extra is None else loss + extra, metrics=metrics)

    def reference_point(self, batches: Sequence[Batch]) -> float:
        """max(0, mean of log π - log π0 over mismatched pairs) of the samples of all ranks; each computes those of its own
        prompts."""
        if self.config.kl != "mismatched":
            return 0.0
        told = self.all_gather_object(told_completions(batches) if self.counts else {})
        pairs = mismatched(batches, told={key: completion for part in told for key, completion in part.items()})
        longest = max(self.all_gather_object(len(pairs)))
        # a rank with fewer pairs takes part in the passes of the others
        ratios = [self._ratios(batch) for batch in [*pairs, *batches[:1] * (longest - len(pairs))]][: len(pairs)]
        sums = [sum(float(ratio.sum()) for ratio in ratios), sum(ratio.size for ratio in ratios)]
        total, count = self.summed(sums)
        return max(0.0, total / count) if count else 0.0

    def _ratios(self, batch: Batch) -> Tensor:
        """log π - log π0 of each completion."""
        completions = completions_of(batch)
        ours, theirs = (without_gradient(m, batch, completions, self.loss_chunk) for m in (self.policy, self.reference))
        return ours - theirs

    def _measured(self, policy: Tensor, rewards: Tensor, kl: Tensor, completions: Completions) -> Metrics:
        """``chosen`` stands for desirable rows and ``rejected`` for the others; the engine takes the difference of their
        mean rewards as ``rewards/margins``. ``rewards/accuracies``: the share of rows on the right side of the reference
        point. ``rewards/ranking``: the share of (desirable, undesirable) pairs within a micro-batch in the right order."""
        n = float(len(completions))
        sign = np.where(completions.rejected, -1.0, 1.0)
        right = paddle.to_tensor(sign) * (rewards - self.config.beta * kl) > 0
        metrics: Metrics = {"kl": (kl * n, n), "rewards/accuracies": (right.astype("float64").sum(), n)}
        metrics["rewards/ranking"] = ranking(rewards, completions)
        for name, chosen in (("chosen", ~completions.rejected), ("rejected", completions.rejected)):
            mask, count = paddle.to_tensor(chosen.astype("float64")), float(chosen.sum())
            metrics[f"rewards/{name}"] = (rewards * mask).sum(), count
            metrics[f"logps/{name}"] = (policy * mask).sum(), count
        return metrics


def ranking(rewards: Tensor, completions: Completions) -> tuple[Tensor | float, float]:
    """(number of pairs in the right order, pairs) over all pairs of a desirable and an undesirable row."""
    good, bad = np.flatnonzero(~completions.rejected), np.flatnonzero(completions.rejected)
    if not len(good) or not len(bad):
        return 0.0, 0.0
    better = rewards.gather(paddle.to_tensor(good)).unsqueeze(1) > rewards.gather(paddle.to_tensor(bad)).unsqueeze(0)
    return better.astype("float64").sum(), float(len(good) * len(bad))
