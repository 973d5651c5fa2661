"""The language-model head and its loss in one, without the full logits. Not a mean: the caller divides."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import Tensor

from erniecore.types.samples import IGNORE


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, transposed: bool, bias: Tensor | None = None, chunk: int = 0
) -> Tensor:
    """Negative log-likelihood of each label under ``softmax(hidden @ weight + bias)``.

    Only positions with a label are computed.

    Args:
        hidden: [T, H]. weight: [H, V], or [V, H] when ``transposed``. bias: [V].
        labels: integers [T]; IGNORE = not learned.
        chunk: positions per piece; 0 chooses.
    Returns:
        float32 [T]; 0 at IGNORE.
    """
    learned = (labels.numpy() != IGNORE).nonzero()[0]
    total = paddle.zeros([labels.shape[0]], dtype="float32")
    if len(learned) == 0:
        return total + (hidden.sum() * 0.0).astype("float32")
    index = paddle.to_tensor(learned)
    logits = paddle.matmul(paddle.gather(hidden, index), weight, transpose_y=transposed)
    if bias is not None:
        logits = logits + bias
    loss = F.cross_entropy(logits.astype("float32"), paddle.gather(labels, index), reduction="none")
    return paddle.scatter(total, index, loss.flatten())
