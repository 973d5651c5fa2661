"""The losses of reward models: pure functions of rewards, one element per pair. No models here.

Notation: c, r rewards of the preferred and the rejected completion; m margin; e label smoothing; σ the logistic function.
All tensors are [n], float64 or float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle.nn.functional as F  # noqa: TID253

if TYPE_CHECKING:
    from paddle import Tensor


def bradley_terry(
    chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, *, label_smoothing: float = 0.0
) -> Tensor:
    """-(1 - e) log σ(c - r - m) - e log σ(-(c - r - m)), [n].

    Bradley & Terry, "Rank Analysis of Incomplete Block Designs" (1952); as the loss of a reward model: Ouyang et al.,
    arXiv:2203.02155; with a margin: Touvron et al., "Llama 2" (2023), arXiv:2307.09288.
    """
    x = chosen - rejected - margin
    loss = -(1 - label_smoothing) * F.log_sigmoid(x)
    return loss - label_smoothing * F.log_sigmoid(-x) if label_smoothing else loss


def centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(c + r)^2, [n]: pulls the mean of a pair to 0. Eisenstein et al., "Helping or Herding?" (2023), arXiv:2312.09244."""
    return (chosen + rejected) ** 2
