"""Attention distributions, and how far those of a student are from its teacher's. Pure functions; dense: memory grows with S².

Letters: B batch, S query positions, K key positions, h query heads, g groups of heads that share a key head, d head size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_distill.divergences import kl

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    from erniecore.api.ops import AttentionInputs

#: added to scores of keys that a query does not attend to; finite, so that 0 times its logarithm is 0
_HIDDEN = -1e30


def visible(inputs: AttentionInputs) -> NDArray[np.bool_]:
    """bool [B, S, K]: which keys a query attends to."""
    (B, S), K = inputs.q.shape[:2], inputs.k.shape[1]
    rows = np.arange(S)[:, None]
    found = np.broadcast_to(np.arange(K) <= rows + (K - S), (B, S, K))
    if inputs.startend_row_indices is not None:
        found = found & (rows < inputs.startend_row_indices.numpy().reshape(B, 1, K))
    if inputs.attention_mask is not None:
        found = found & (inputs.attention_mask.numpy().reshape(B, 1, K) != 0)
    return found


def attention_log_probs(inputs: AttentionInputs, heads: str) -> Tensor:
    """log softmax(q k^T scale + mask), float32 (float64 of float64).

    Args:
        heads: ``each``: [B, h, S, K]. ``average``: the logarithm of the mean over the heads, [B, S, K].
    """
    dtype = "float64" if inputs.q.dtype == paddle.float64 else "float32"
    q_BhSd = inputs.q.astype(dtype).transpose([0, 2, 1, 3])
    k_BhKd = inputs.k.astype(dtype).transpose([0, 2, 1, 3])
    h, groups = q_BhSd.shape[1], k_BhKd.shape[1]
    k_BhKd = paddle.repeat_interleave(k_BhKd, h // groups, axis=1)
    scores = paddle.matmul(q_BhSd, k_BhKd, transpose_y=True) * inputs.scale
    mask = np.where(visible(inputs)[:, None], 0.0, _HIDDEN).astype(dtype)
    log_p = F.log_softmax(scores + paddle.to_tensor(mask), axis=-1)
    return log_p if heads == "each" else paddle.logsumexp(log_p, axis=1) - math.log(h)


def attention_divergence(teacher: Tensor, student: Tensor, real: NDArray[np.bool_]) -> Tensor:
    """Σ KL(teacher | student) over the query positions that are ``real`` [B, S]; with ``[B, h, S, K]`` the mean over heads.

    Args:
        teacher, student: of :func:`attention_log_probs`, of one shape.
    """
    rows = kl(teacher, student)
    rows = rows.mean(axis=1) if rows.ndim == 3 else rows
    return (rows * paddle.to_tensor(real.astype(str(rows.dtype).rpartition(".")[2]))).sum()
