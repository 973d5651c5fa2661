"""Which experts a token goes to and with what weights: pure functions in float32, no weights, no state.

The selection bias decides who is selected and never enters a weight (arXiv:2408.15664).
Letters: T tokens, H hidden, E experts, k selected experts.
"""

from __future__ import annotations

from typing import NamedTuple

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import ops


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        logits: float32 [T, E], before the score function.
        scores: float32 [T, E], softmax (or sigmoid) of the logits.
        experts: int64 [T, k]; -1 where an assignment was dropped.
        weights: float32 [T, k], sum to 1 over the assignments that are left; 0 where dropped.
    """

    logits: Tensor
    scores: Tensor
    experts: Tensor
    weights: Tensor


#: logits [T, E] -> scores [T, E], by the architecture's ``scoring``.
SCORES = {"softmax": lambda logits: F.softmax(logits, axis=-1), "sigmoid": F.sigmoid}


def route(
    x_TH: Tensor,
    gate_HE: Tensor,
    bias_E: Tensor,
    *,
    num_selected: int,
    norm_min: float,
    scoring: str = "softmax",
    given_Tk: Tensor | None = None,
) -> Routing:
    """Scores of all experts, the ``num_selected`` with the highest score + bias or those that are given, and their weights.

    float32 whatever the model's dtype and whatever automatic casting is on. Gradients flow through scores and
    weights, not through the selection.
    """
    with paddle.amp.auto_cast(enable=False):
        logits_TE = paddle.matmul(x_TH.astype("float32"), gate_HE)
        scores_TE = SCORES[scoring](logits_TE)
        experts_Tk = select(scores_TE, bias_E, num_selected) if given_Tk is None else given_Tk
        weights_Tk = normalize(paddle.take_along_axis(scores_TE, experts_Tk, axis=1), norm_min)
    return Routing(logits_TE, scores_TE, experts_Tk, weights_Tk)


def select(scores_TE: Tensor, bias_E: Tensor, num_selected: int) -> Tensor:
    """Indices [T, k] of the highest score + bias, best first; no gradient."""
    return ops.top_experts(scores_TE.detach() + bias_E.detach(), num_selected)


def normalize(scores_Tk: Tensor, norm_min: float) -> Tensor:
    """Scores divided by max(their sum, ``norm_min``)."""
    return scores_Tk / scores_Tk.sum(axis=-1, keepdim=True).clip(min=norm_min)


def hide_padding(routing: Routing, real_T: Tensor | None) -> Routing:
    """Padding goes to no expert: it takes no work and no capacity. ``real_T``: bool [T] or None."""
    if real_T is None:
        return routing
    dropped = paddle.full_like(routing.experts, -1)
    return routing._replace(experts=paddle.where(real_T.unsqueeze(-1), routing.experts, dropped))


def drop_over_capacity(routing: Routing, capacity: int, norm_min: float) -> Routing:
    """Each expert keeps its first ``capacity`` assignments in token order; what is left of a token's weights is
    normalized again."""
    num_experts = routing.scores.shape[1]
    slots_Tk = routing.experts
    taken_TE = assignments(slots_Tk, num_experts).cumsum(axis=0)
    place_Tk = paddle.take_along_axis(taken_TE, slots_Tk.clip(min=0), axis=1)
    kept_Tk = paddle.logical_and(place_Tk <= capacity, slots_Tk >= 0)
    scores_Tk = paddle.take_along_axis(routing.scores, slots_Tk.clip(min=0), axis=1) * kept_Tk.astype("float32")
    experts_Tk = paddle.where(kept_Tk, slots_Tk, paddle.full_like(slots_Tk, -1))
    return routing._replace(experts=experts_Tk, weights=normalize(scores_Tk, norm_min))


def assignments(experts_Tk: Tensor, num_experts: int) -> Tensor:
    """float32 [T, E]: 1 where a token goes to an expert; an assignment to -1 counts nowhere."""
    experts_TkE = experts_Tk.unsqueeze(-1) == paddle.arange(num_experts, dtype=experts_Tk.dtype)
    return experts_TkE.astype("float32").sum(axis=1)


def loads(experts_Tk: Tensor, num_experts: int) -> Tensor:
    """float32 [E]: how many tokens go to each expert; ``assignments`` summed over tokens, at a cost that does not grow
    with E. An assignment to -1 counts nowhere."""
    slots = experts_Tk.flatten() + 1
    counts = paddle.scatter_nd_add(paddle.zeros([num_experts + 1]), slots.unsqueeze(-1), paddle.ones(slots.shape))
    return counts[1:]


def loads_by_kind(experts_Tk: Tensor, kinds_TM: Tensor, num_experts: int) -> Tensor:
    """float32 [M, E]: how many tokens of each kind go to each expert. ``kinds_TM``: float32, 1 at the kind of each token."""
    return paddle.matmul(kinds_TM, assignments(experts_Tk, num_experts), transpose_x=True)
