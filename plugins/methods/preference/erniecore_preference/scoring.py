"""Log-probabilities of completions under a model, from hidden states at learned positions only: full logits never exist.

Letters: T = batch * sequence positions, H hidden, A completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253

from erniecore.api import ops
from erniecore.api.method import Batch
from erniecore_preference.grouping import Completions

if TYPE_CHECKING:
    from paddle import Tensor

    #: name -> (sum, weight), see ``erniecore.api.LossOutput``
    Metrics = dict[str, tuple[Tensor | float, float]]


def inputs_of(batch: Batch) -> dict[str, Tensor]:
    """What ``features`` of a model takes beside the ids: positions, attention bounds, and images where there are some."""
    given = {"position_ids": batch.position_ids, "startend_row_indices": batch.startend_row_indices, **batch.inputs}
    return {name: paddle.to_tensor(values) for name, values in given.items()}


def log_probabilities(
    model: Any, batch: Batch, completions: Completions, chunk: int
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Summed log-probability of each completion, float64 [A], and the auxiliary losses of the forward pass.

    The sums are float64: rewards are small differences of long sums.
    """
    features = model.features(paddle.to_tensor(batch.input_ids), **inputs_of(batch))
    weight, transposed, bias = model.head()
    hidden_TH = features.hidden.reshape([-1, features.hidden.shape[-1]])
    labels = paddle.to_tensor(batch.labels.reshape(-1))
    nll_T = ops.linear_cross_entropy(hidden_TH, weight, labels, transposed=transposed, bias=bias, chunk=chunk)
    if not len(completions):
        return nll_T[:0].astype("float64"), features.auxiliary
    learned = nll_T.gather(paddle.to_tensor(completions.where)).astype("float64")
    return -paddle.geometric.segment_sum(learned, paddle.to_tensor(completions.owner)), features.auxiliary


def without_gradient(model: Any, batch: Batch, completions: Completions, chunk: int) -> Tensor:
    """The same log-probabilities as constants, in evaluation mode; the model's mode is restored."""
    training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            return log_probabilities(model, batch, completions, chunk)[0]
    finally:
        if training:
            model.train()


def auxiliary_loss(auxiliary: Mapping[str, Tensor], batch: Batch, seen: float) -> tuple[Tensor | None, Metrics]:
    """What the model's own losses (of routers) add: a term of value 0 that carries their gradient, and metrics.

    Each is a mean over the micro-batch's tokens, so it is weighted by its share of the step's tokens, ``seen``."""
    if not auxiliary:
        return None, {}
    num = float(batch.num_tokens)
    total = sum(auxiliary.values(), start=paddle.zeros([])) * (num / (seen or 1.0))
    return total - total.detach(), {f"router/{name}": (value.detach() * num, num) for name, value in auxiliary.items()}
