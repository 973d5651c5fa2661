"""The losses: pure functions of log-probabilities per token. No models here.

Notation: l log-probability of a token under the policy, l0 under the policy that sampled it, lr under the reference;
A advantage of its completion; r importance ratio. All tensors are [n], one element per loss token, float64 or float32;
``owner`` int64 [n] ascending, the completion that a token belongs to; ``lengths`` [a], tokens of each completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor


def token_ratio(log_ratio: Tensor, owner: Tensor, lengths: Tensor) -> Tensor:
    """r = exp(l - l0). Schulman et al., "Proximal Policy Optimization" (2017), arXiv:1707.06347; per token as in Shao et
    al., "DeepSeekMath" (2024), arXiv:2402.03300."""
    return paddle.exp(log_ratio)


def sequence_ratio(log_ratio: Tensor, owner: Tensor, lengths: Tensor) -> Tensor:
    """r = exp(mean of l - l0 over the completion), the same for each of its tokens.

    Zheng et al., "Group Sequence Policy Optimization" (GSPO, 2025), arXiv:2507.18071.
    """
    return paddle.exp(paddle.geometric.segment_sum(log_ratio, owner) / lengths).gather(owner)


def completion_ratio(log_ratio: Tensor, owner: Tensor, lengths: Tensor) -> Tensor:
    """r = exp(sum of l - l0 over the completion), the same for each of its tokens: the completion as one action.

    Ahmadian et al., "Back to Basics" (RLOO, 2024), arXiv:2402.14740.
    """
    return paddle.exp(paddle.geometric.segment_sum(log_ratio, owner)).gather(owner)


Ratio = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
#: ``method.ratio`` -> (l - l0, owner, lengths) -> r
RATIOS: Mapping[str, Ratio] = {"token": token_ratio, "sequence": sequence_ratio}


def clipped_loss(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A), and where the clipped term is the smaller one (bool).

    Schulman et al. (2017), arXiv:1707.06347; two bounds: Yu et al., "DAPO" (2025), arXiv:2503.14476.
    """
    free, clipped = ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage
    return -paddle.minimum(free, clipped), clipped < free


def mismatch_factor(learner: Tensor, sampler: Tensor, low: float, high: float) -> Tensor:
    """M(κ) with κ = exp(learner - sampler), the log-probabilities at the rollout: κ within [low, high], else 0; no gradient.

    IcePop (Ling team, 2025), in ERNIE 5.0 together with the ratio of sequences and clipping: mixed importance sampling
    (arXiv:2602.04705). A token of which the sampler said no log-probability (0) has κ = 1.
    """
    ratio = paddle.exp(paddle.where(sampler == 0, paddle.zeros_like(learner), learner - sampler)).detach()
    return paddle.where((ratio >= low) & (ratio <= high), ratio, paddle.zeros_like(ratio))


def k3(log_prob: Tensor, reference: Tensor) -> Tensor:
    """exp(lr - l) - (lr - l) - 1 >= 0: for tokens of the policy an unbiased estimate of KL(policy | reference).

    Schulman, "Approximating KL Divergence" (2020); as a loss in Shao et al. (2024), arXiv:2402.03300.
    """
    difference = reference - log_prob
    return paddle.exp(difference) - difference - 1


def per_token(lengths: NDArray[np.int64], limit: int, totals: Mapping[str, float]) -> NDArray[np.float64]:
    """1 / tokens of the step: each token weighs the same. Yu et al., "DAPO" (2025), arXiv:2503.14476."""
    return np.full(len(lengths), 1 / (totals["tokens"] or 1.0))


def per_sequence(lengths: NDArray[np.int64], limit: int, totals: Mapping[str, float]) -> NDArray[np.float64]:
    """1 / (length of the completion * completions of the step). Shao et al., "DeepSeekMath" (2024), arXiv:2402.03300."""
    return 1 / (lengths * (totals["completions"] or 1.0))


def constant(lengths: NDArray[np.int64], limit: int, totals: Mapping[str, float]) -> NDArray[np.float64]:
    """1 / (limit * completions of the step): no bias towards short or long completions. Liu et al. (2025), arXiv:2503.20783."""
    return np.full(len(lengths), 1 / (limit * (totals["completions"] or 1.0)))


Weight = Callable[["NDArray[np.int64]", int, Mapping[str, float]], "NDArray[np.float64]"]
#: ``method.normalization`` -> (lengths [a], max_new_tokens, totals of the step) -> weight of a token of each completion [a]
WEIGHTS: Mapping[str, Weight] = {"token": per_token, "sequence": per_sequence, "constant": constant}
