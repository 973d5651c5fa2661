"""Newton-Schulz iteration: the nearest matrix with orthonormal rows or columns, roughly, by matmuls alone.

With the singular value decomposition M = U S Vᵀ the result is U S' Vᵀ, where every singular value in S' is near 1 (about 0.7
to 1.2): the coefficients make small ones grow as fast as possible and do not converge to 1 exactly.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), https://kellerjordan.github.io/posts/muon/;
coefficients and five steps as published there.
"""

from __future__ import annotations

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

#: a, b, c of X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: added to the norm
EPSILON = 1e-7


def orthogonalized(matrices: Tensor, steps: int = 5, dtype: str = "float32") -> Tensor:
    """Each matrix of ``matrices`` [..., m, n], orthogonalized by itself.

    Args:
        dtype: in which it is computed.
    Returns:
        float32, of the same shape; zeros for zeros.
    """
    a, b, c = COEFFICIENTS
    x = matrices.astype("float32")
    tall = x.shape[-2] > x.shape[-1]
    x = _transposed(x) if tall else x  # the smaller Gram matrix
    norm = (x * x).sum(axis=[-2, -1], keepdim=True).sqrt()
    x = (x / (norm + EPSILON)).astype(dtype)
    for _ in range(steps):
        gram = paddle.matmul(x, x, transpose_y=True)
        x = a * x + paddle.matmul(b * gram + c * paddle.matmul(gram, gram), x)
    x = x.astype("float32")
    return _transposed(x) if tall else x


def _transposed(x: Tensor) -> Tensor:
    order = list(range(x.ndim))
    return x.transpose([*order[:-2], order[-1], order[-2]])
