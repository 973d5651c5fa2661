"""Row lookup in the embedding table."""

from __future__ import annotations

import paddle.nn.functional as F
from paddle import Tensor


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """``weight[ids]``: integers [...] -> [..., H]; the gradient adds up over repeated ids."""
    return F.embedding(ids, weight)
