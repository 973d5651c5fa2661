"""The losses: one pure function each, from summed log-probabilities to losses and rewards per pair. No models here.

Notation: c, r log-probabilities of the preferred and the rejected completion under the policy, c0, r0 under the reference,
z = (c - r) - (c0 - r0); |c|, |r| lengths in tokens; b = beta, σ the logistic function. ``o`` is the method's section of
the settings. All tensors are [n], one element per pair, float64 or float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253

if TYPE_CHECKING:
    from paddle import Tensor

#: a mean log-probability nearer to 0 counts as this: log(1 - p) has no value at p = 1
LEAST = -1e-9


@dataclass(frozen=True, slots=True)
class Pairs:
    """Summed log-probabilities of n pairs; those of the reference are 0 without one. ``margin``: None or [n], > 0.
    ``points``: mean log-ratios of preferred and of rejected completions over a whole step; None: these are all of it."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor
    margin: Tensor | None = None
    points: tuple[float, float] | None = None

    @property
    def chosen_ratio(self) -> Tensor:
        """c - c0, the log-ratio of chosen completions."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> Tensor:
        """r - r0, the log-ratio of rejected completions."""
        return self.rejected - self.reference_rejected

    @property
    def contrast(self) -> Tensor:
        """z, the difference of the two log-ratios."""
        return self.chosen_ratio - self.rejected_ratio

    def normalized(self, how: str) -> Pairs:
        """Log-probabilities divided by lengths: ``none``, ``mean`` or ``balanced`` (see ``config.py``)."""
        if how == "none":
            return self
        scale = 1.0 if how == "mean" else (self.chosen_length + self.rejected_length) / 2
        chosen, rejected = scale / self.chosen_length, scale / self.rejected_length
        return replace(
            self,
            chosen=self.chosen * chosen,
            rejected=self.rejected * rejected,
            reference_chosen=self.reference_chosen * chosen,
            reference_rejected=self.reference_rejected * rejected,
        )


class Scored(NamedTuple):
    """Per pair: the loss, and the rewards b (c - c0) and b (r - r0) that the policy implies. ``kl``: the reference
    point, where the loss has one."""

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    kl: Tensor | None = None


def _scored(loss: Tensor, pairs: Pairs, beta: float, kl: Tensor | None = None) -> Scored:
    return Scored(loss, beta * pairs.chosen_ratio.detach(), beta * pairs.rejected_ratio.detach(), kl)


def _smoothed(x: Tensor, smoothing: float) -> Tensor:
    """-(1 - e) log σ(x) - e log σ(-x)."""
    loss = -(1 - smoothing) * F.log_sigmoid(x)
    return loss - smoothing * F.log_sigmoid(-x) if smoothing else loss


def dpo(pairs: Pairs, o: Any) -> Scored:
    """-(1 - e) log σ(b z - d) - e log σ(-(b z - d)) with e = label_smoothing, d = offset_alpha ln(margin).

    Rafailov et al., "Direct Preference Optimization" (2023), arXiv:2305.18290; smoothing: Mitchell, "A note on DPO with
    noisy preferences" (2023); offset: Amini et al., "DPO with an Offset" (2024), arXiv:2402.10571.
    """
    x = o.beta * pairs.contrast
    if o.offset_alpha and pairs.margin is not None:
        x = x - o.offset_alpha * paddle.log(pairs.margin)
    return _scored(_smoothed(x, o.label_smoothing), pairs, o.beta)


def ipo(pairs: Pairs, o: Any) -> Scored:
    """(z - 1 / (2 b))^2. Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences"
    (2023), arXiv:2310.12036."""
    return _scored((pairs.contrast - 1 / (2 * o.beta)) ** 2, pairs, o.beta)


def hinge(pairs: Pairs, o: Any) -> Scored:
    """max(0, 1 - b z). Zhao et al., "SLiC-HF" (2023), arXiv:2305.10425, over log-ratios as in Liu et al., "RSO" (2023),
    arXiv:2309.06657."""
    return _scored(F.relu(1 - o.beta * pairs.contrast), pairs, o.beta)


def robust(pairs: Pairs, o: Any) -> Scored:
    """(-(1 - e) log σ(b z) + e log σ(-b z)) / (1 - 2 e): its mean over flipped labels is the loss of the true ones.

    Chowdhury et al., "Provably Robust DPO" (2024), arXiv:2403.00409. Unbounded below for e > 0.
    """
    x, e = o.beta * pairs.contrast, o.label_smoothing
    loss = (-(1 - e) * F.log_sigmoid(x) + e * F.log_sigmoid(-x)) / (1 - 2 * e)
    return _scored(loss, pairs, o.beta)


def dpop(pairs: Pairs, o: Any) -> Scored:
    """-log σ(b (z - l max(0, c0 - c))) with l = penalty; or -log σ(b z) + l max(0, c0 - c) with penalty_outside.

    Pal et al., "Smaug: Fixing Failure Modes of Preference Optimization with DPO-Positive" (2024), arXiv:2402.13228.
    """
    lost = o.penalty * F.relu(-pairs.chosen_ratio)
    if o.penalty_outside:
        return _scored(lost - F.log_sigmoid(o.beta * pairs.contrast), pairs, o.beta)
    return _scored(-F.log_sigmoid(o.beta * (pairs.contrast - lost)), pairs, o.beta)


def sppo(pairs: Pairs, o: Any) -> Scored:
    """((c - c0) - 1 / (2 b))^2 + ((r - r0) + 1 / (2 b))^2, with probabilities of winning 1 and 0.

    Wu et al., "Self-Play Preference Optimization" (2024), arXiv:2405.00675; their eta is 1 / b.
    """
    half = 1 / (2 * o.beta)
    return _scored((pairs.chosen_ratio - half) ** 2 + (pairs.rejected_ratio + half) ** 2, pairs, o.beta)


def nca(pairs: Pairs, o: Any) -> Scored:
    """-log σ(b (c - c0)) - 1/2 log σ(-b (c - c0)) - 1/2 log σ(-b (r - r0)); never below 0.95.

    Chen et al., "Noise Contrastive Alignment of Language Models with Explicit Rewards" (2024), arXiv:2402.05369.
    """
    c, r = o.beta * pairs.chosen_ratio, o.beta * pairs.rejected_ratio
    loss = -F.log_sigmoid(c) - 0.5 * F.log_sigmoid(-c) - 0.5 * F.log_sigmoid(-r)
    return _scored(loss, pairs, o.beta)


def kto_pair(pairs: Pairs, o: Any) -> Scored:
    """Mean of 1 - σ(b ((c - c0) - k_r)) and 1 - σ(b (k_c - (r - r0))), where k_c = max(0, mean(c - c0)) and
    k_r = max(0, mean(r - r0)) over the step carry no gradient.

    The paired form of Ethayarajh et al., "KTO" (2024), arXiv:2402.01306.
    """
    c, r = pairs.chosen_ratio, pairs.rejected_ratio
    if pairs.points is None:
        means = [c.detach().mean(), r.detach().mean()]
    else:
        means = [paddle.full([], mean, c.dtype) for mean in pairs.points]
    k_c, k_r = (F.relu(mean) for mean in means)
    loss = (F.sigmoid(o.beta * (k_r - c)) + F.sigmoid(o.beta * (r - k_c))) / 2
    return _scored(loss, pairs, o.beta, (k_c + k_r) / 2)


def simpo(pairs: Pairs, o: Any) -> Scored:
    """-log σ(b (c / |c| - r / |r|) - gamma), smoothed as :func:`dpo`; no reference.

    Meng et al., "SimPO: Simple Preference Optimization with a Reference-Free Reward" (2024), arXiv:2405.14734.
    """
    mean = pairs.normalized("mean")
    loss = _smoothed(o.beta * (mean.chosen - mean.rejected) - o.gamma, o.label_smoothing)
    return _scored(loss, mean, o.beta)


def orpo(pairs: Pairs, o: Any) -> Scored:
    """-b log σ(log odds(c) - log odds(r)), odds(x) = p / (1 - p) with p = exp(x / |x|); no reference.

    Hong et al., "ORPO: Monolithic Preference Optimization without Reference Model" (2024), arXiv:2403.07691; the
    likelihood of the chosen completion, the paper's first term, is ``sft_weight``.
    """
    mean = pairs.normalized("mean")
    odds = [x - paddle.log(-paddle.expm1(x.clip(max=LEAST))) for x in (mean.chosen, mean.rejected)]
    return _scored(-o.beta * F.log_sigmoid(odds[0] - odds[1]), mean, o.beta)


def kto(ratio: Tensor, desirable: Tensor, kl: Tensor, o: Any) -> tuple[Tensor, Tensor]:
    """w_d (1 - σ(b (ratio - kl))) for desirable completions, w_u (1 - σ(b (kl - ratio))) for the others.

    Args:
        ratio: log-probability under the policy minus that under the reference, [n].
        desirable: bool [n]. kl: scalar, estimated on mismatched pairs; clamped at 0 and detached here.
    Returns:
        (losses, rewards b ratio), each [n].
    Source: Ethayarajh et al., "KTO: Model Alignment as Prospect Theoretic Optimization" (2024), arXiv:2402.01306.
    """
    good = desirable.astype(ratio.dtype)
    weight = o.desirable_weight * good + o.undesirable_weight * (1 - good)
    losses = weight * F.sigmoid(o.beta * (2 * good - 1) * (F.relu(kl.detach()) - ratio))
    return losses, o.beta * ratio.detach()


PairLoss = Callable[[Pairs, Any], Scored]

#: losses that need means over all pairs of a step
OVER_STEPS = frozenset({kto_pair})

#: method -> loss over pairs; the only list
LOSSES: Mapping[str, PairLoss] = {
    "dpo": dpo,
    "ipo": ipo,
    "hinge": hinge,
    "robust": robust,
    "dpop": dpop,
    "sppo": sppo,
    "nca": nca,
    "kto-pair": kto_pair,
    "simpo": simpo,
    "orpo": orpo,
}
