"""How far the student is from the teacher: one pure function each, over log-probabilities. No models here.

Notation: P teacher, Q student, both over the same outcomes: the vocabulary, or k tokens and all others as one. All
functions take log P and log Q as [n, outcomes] and return [n], float64 or float32; b is ``method.beta``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253

if TYPE_CHECKING:
    from paddle import Tensor


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(P | Q) = Σ P (log P - log Q), [n]."""
    return (log_p.exp() * (log_p - log_q)).sum(axis=-1)


def forward_kl(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """KL(P | Q). Hinton, Vinyals & Dean, "Distilling the Knowledge in a Neural Network" (2015), arXiv:1503.02531."""
    return kl(log_p, log_q)


def reverse_kl(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """KL(Q | P). Gu et al., "MiniLLM" (2023), arXiv:2306.08543."""
    return kl(log_q, log_p)


def jsd(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """b KL(P | M) + (1 - b) KL(Q | M) with M = b P + (1 - b) Q.

    The generalized Jensen–Shannon divergence of Agarwal et al., "On-Policy Distillation of Language Models" (2023),
    arXiv:2306.13649; divided by b it tends to KL(P | Q) for b -> 0, divided by 1 - b to KL(Q | P) for b -> 1.
    """
    log_m = logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * kl(log_p, log_m) + (1 - beta) * kl(log_q, log_m)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b), without overflow."""
    return paddle.maximum(a, b) + F.softplus(-(a - b).abs(), threshold=1e9)


#: by ``method.divergence``
DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "forward-kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jsd,
}
