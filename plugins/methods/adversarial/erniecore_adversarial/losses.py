"""The adversarial loss as a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle.nn.functional as F  # noqa: TID253

if TYPE_CHECKING:
    from paddle import Tensor


def adversarial_losses(scores: Tensor, natural: Tensor) -> Tensor:
    """−log P(y = natural | h), with P(natural) = σ(s), [n].

    Args:
        scores: s of the marker's hidden state, float64 or float32 [n]. natural: 1 for text of people, 0 for generated text.

    Wang et al., "ERNIE 3.0 Titan" (2021), arXiv:2112.12731, equation of the self-supervised adversarial loss.
    """
    return -F.log_sigmoid((2 * natural - 1) * scores)


def log_natural(scores: Tensor) -> Tensor:
    """log P(natural) = log σ(s), [n]; by it generated texts are ranked."""
    return F.log_sigmoid(scores)
