"""Router losses of one mixture-of-experts layer: pure functions, float32, padding left out. They enter training as
gradient only and are summed over layers; coefficients are the caller's.

Letters: T tokens, H hidden, E experts, k selected experts.
"""

from __future__ import annotations

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_ernie45_moe.router import assignments


def aux_loss(scores_TE: Tensor, num_selected: int, real_T: Tensor | None = None) -> Tensor:
    """E * sum_e mean(p_e) * n_e / T, where n_e counts e among the k highest scores *without* the selection bias.

    k for a perfectly even router (sum_e n_e = k T). No gradient through n. Source: arXiv:2101.03961, eq. 4, for k > 1.
    """
    num_experts = scores_TE.shape[1]
    shares_TE = scores_TE / scores_TE.sum(axis=-1, keepdim=True)
    chosen_TE = assignments(paddle.topk(scores_TE.detach(), num_selected, axis=-1)[1], num_experts)
    return num_experts * (mean_over_tokens(shares_TE, real_T) * mean_over_tokens(chosen_TE, real_T)).sum()


def sequence_loss(scores_TE: Tensor, num_selected: int, num_rows: int, real_T: Tensor | None = None) -> Tensor:
    """:func:`aux_loss` of every row by itself, divided by k, as a mean over rows: 1 for a router that is even in each.

    Rows are those of the batch: a row that packs several samples counts as one. Source: arXiv:2412.19437, eq. 17 to 20."""
    size = scores_TE.shape[-1]
    scores_BSE = scores_TE.reshape([num_rows, -1, size])
    real_BS = None if real_T is None else real_T.reshape([num_rows, -1])
    rows = [
        aux_loss(scores_BSE[row], num_selected, None if real_BS is None else real_BS[row]) for row in range(num_rows)
    ]
    return paddle.add_n(rows) / (num_rows * num_selected)


def similarity_loss(gate_HE: Tensor) -> Tensor:
    """Σ |Rᵀ R − I| over the E x E entries, of the router's weight as it is: 0 for orthonormal expert vectors, with which tokens
    keep their similarity in the logits. Unlike :func:`orthogonal_loss` it also holds lengths. Source: SimBal, arXiv:2506.14038.
    """
    gram_EE = paddle.matmul(gate_HE, gate_HE, transpose_x=True)
    return (gram_EE - paddle.eye(gate_HE.shape[1])).abs().sum()


def z_loss(logits_TE: Tensor, real_T: Tensor | None = None) -> Tensor:
    """Mean over tokens of logsumexp(logits)^2. Source: arXiv:2202.08906, eq. 5."""
    return mean_over_tokens(paddle.logsumexp(logits_TE, axis=-1, keepdim=True).square(), real_T).sum()


def orthogonal_loss(gate_HE: Tensor, epsilon: float = 1e-12) -> Tensor:
    """||G G^T - I||_F^2 / E^2 with the expert vectors, scaled to length 1, as rows of G.

    About 1 / H for random vectors, so it starts near its end at real widths. Source: the router orthogonalisation of
    the ERNIE 4.5 technical report (2025)."""
    num_experts = gate_HE.shape[1]
    unit_HE = gate_HE / paddle.linalg.norm(gate_HE, axis=0, keepdim=True).clip(min=epsilon)
    gram_EE = paddle.matmul(unit_HE, unit_HE, transpose_x=True)
    return (gram_EE - paddle.eye(num_experts)).square().sum() / num_experts**2


def orthogonal_gradient(gate_HE: Tensor, epsilon: float = 1e-12) -> Tensor:
    """Gradient [H, E] of :func:`orthogonal_loss`: with the unit vectors U and their lengths n,

        4 / E² · (I − u uᵀ) (U (UᵀU − I)) / n      for each expert's u and n

    It is orthogonal to each expert's vector, so small steps turn vectors and leave their lengths.
    """
    num_experts = gate_HE.shape[1]
    length_1E = paddle.linalg.norm(gate_HE, axis=0, keepdim=True).clip(min=epsilon)
    unit_HE = gate_HE / length_1E
    gram_EE = paddle.matmul(unit_HE, unit_HE, transpose_x=True)
    slope_HE = paddle.matmul(unit_HE, gram_EE - paddle.eye(num_experts))
    across_HE = slope_HE - unit_HE * (unit_HE * slope_HE).sum(axis=0, keepdim=True)
    return across_HE * (4.0 / num_experts**2) / length_1E


def router_entropy(scores_TE: Tensor, real_T: Tensor | None = None) -> Tensor:
    """Mean entropy of the scores, divided by ln E: 1 when every expert is equally likely. A metric, not a loss."""
    shares_TE = (scores_TE / scores_TE.sum(axis=-1, keepdim=True)).clip(min=1e-30)
    entropy_T1 = -(shares_TE * shares_TE.log()).sum(axis=-1, keepdim=True)
    return mean_over_tokens(entropy_T1, real_T).sum() / paddle.to_tensor(float(scores_TE.shape[1])).log()


def mean_over_tokens(values_TN: Tensor, real_T: Tensor | None) -> Tensor:
    """Mean [N] over the tokens that are not padding; 0 when all are."""
    if real_T is None:
        return values_TN.mean(axis=0)
    weights_T1 = real_T.astype(values_TN.dtype).unsqueeze(-1)
    return (values_TN * weights_T1).sum(axis=0) / weights_T1.sum().clip(min=1.0)
