"""Which experts a token goes to, once they are scored. No scores, no weights and no dispatch here."""

from __future__ import annotations

import paddle
from paddle import Tensor

from erniecore_ops.kernels import replaceable


@replaceable
def top_experts(scores: Tensor, k: int) -> Tensor:
    """Indices of the ``k`` highest of each row, best first: scores [T, E] -> int64 [T, k]; without gradient."""
    chosen: Tensor = paddle.topk(scores.detach(), k, axis=-1)[1]
    return chosen
