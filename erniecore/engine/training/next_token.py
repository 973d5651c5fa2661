"""The loss of next-token prediction: mean negative log-likelihood of the loss tokens.

    L = (1 / N) Σ_{t with a label} −log p(label_t | tokens ≤ t)          N: loss tokens of the whole step

Only positions with a label reach the head, so the full logits never exist. Multi-token prediction and router losses add
their gradient but not their value: l − detach(l); the reported loss stays comparable between models. Which positions
have a label is the encoder's matter: this is shared by pre-training and fine-tuning.

Letters: B batch, S sequence, H hidden, D depths of multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from erniecore_ops import functions as ops
from numpy.typing import NDArray

from erniecore.types.run import LossOutput, Objective
from erniecore.types.samples import IGNORE, Batch

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.types.model import Features

    #: name -> (sum, weight), see ``LossOutput``
    Metrics = dict[str, tuple[Tensor | float, float]]


class NextTokenObjective(Objective):
    """See ``erniecore.types.run.Objective``.

    Args:
        policy: a ``CausalLM``.
        mtp_weight: λ of the multi-token-prediction loss, averaged over its depths (DeepSeek-V3, arXiv:2412.19437).
        accuracy: also report the fraction of loss tokens that are the most likely one; costs a second pass of the head.
    """

    def __init__(self, policy: Any, *, mtp_weight: float = 0.1, accuracy: bool = False) -> None:
        self.policy, self.mtp_weight, self.accuracy = policy, mtp_weight, accuracy
        self.num_mtp_layers = int(policy.architecture.get("num_nextn_predict_layers") or 0)

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``tokens``: loss tokens; ``seen``: all but padding; ``mtp_n``: loss tokens at depth n."""
        counts = {"tokens": _num_loss_tokens(batch.labels), "seen": float(batch.num_tokens)}
        for depth in range(self.num_mtp_layers):
            counts[f"mtp_{depth}"] = _num_loss_tokens(mtp_labels(batch, depth))
        return counts

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``loss``, ``accuracy``, ``mtp/loss`` and ``router/*`` as (sum, weight)."""
        features = self.policy.features(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
            **{name: paddle.to_tensor(values) for name, values in batch.inputs.items()},
        )
        total, metrics = self.main_loss(features.hidden, batch)
        loss = total / (totals["tokens"] or 1.0)
        metrics["loss"] = total.detach(), _num_loss_tokens(batch.labels)
        return LossOutput(loss=self.with_side_losses(loss, features, batch, totals, metrics), metrics=metrics)

    def with_side_losses(
        self, loss: Tensor, features: Features, batch: Batch, totals: Mapping[str, float], metrics: Metrics
    ) -> Tensor:
        """``loss`` with the gradients of multi-token prediction and of what the model asks for by itself, such as balance of
        experts. Its value stays; theirs are added to ``metrics``."""
        for side in (
            self._mtp(features.mtp_hidden, batch, totals),
            self._auxiliary(features.auxiliary, batch, totals),
        ):
            if side is not None:
                value, named = side
                loss = loss + (value - value.detach())
                metrics.update(named)
        return loss

    def main_loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """The sum over the loss tokens of what is reported as the loss, and further metrics; hidden [B, S, H].

        A method that learns something else of each next token replaces it."""
        # before the hits: every rank asks for the head here, and not all do there
        loss = self._nll(hidden, batch.labels)
        if not self.accuracy:
            return loss, {}
        return loss, {"accuracy": (self._hits(hidden.detach(), batch.labels), _num_loss_tokens(batch.labels))}

    def _mtp(
        self, mtp_hidden: tuple[Tensor, ...], batch: Batch, totals: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]] | None:
        if not mtp_hidden:
            return None
        loss, value, weight = paddle.zeros([]), paddle.zeros([]), 0.0
        for depth, hidden in enumerate(mtp_hidden):
            labels = mtp_labels(batch, depth)
            total = self._nll(hidden, labels)
            loss = loss + total * (self.mtp_weight / len(mtp_hidden) / (totals[f"mtp_{depth}"] or 1.0))
            value, weight = value + total.detach(), weight + _num_loss_tokens(labels)
        return loss, {"mtp/loss": (value, weight)}

    def _auxiliary(
        self, auxiliary: Mapping[str, Tensor], batch: Batch, totals: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, tuple[Tensor | float, float]]] | None:
        if not auxiliary:
            return None
        # each is a mean over the micro-batch's tokens: weighted by its share of the step's tokens
        share = batch.num_tokens / (totals["seen"] or 1.0)
        loss = sum(auxiliary.values(), start=paddle.zeros([])) * share
        seen = float(batch.num_tokens)
        return loss, {f"router/{name}": (value.detach() * seen, seen) for name, value in auxiliary.items()}

    def _nll(self, hidden: Tensor, labels: NDArray[np.int64]) -> Tensor:
        """Sum of −log p over the loss tokens; hidden [B, S, H], labels [B, S]."""
        weight, transposed, bias = self.policy.head()
        losses = ops.linear_cross_entropy(
            hidden.reshape([-1, hidden.shape[-1]]),
            weight,
            paddle.to_tensor(labels.reshape(-1)),
            transposed=transposed,
            bias=bias,
            chunk=self.loss_chunk,
        )
        return losses.sum()

    def _hits(self, hidden: Tensor, labels: NDArray[np.int64]) -> Tensor:
        """How many loss tokens have their label as the most likely token, a chunk of logits at a time."""
        (where,) = np.nonzero(labels.reshape(-1) != IGNORE)
        rows, targets = hidden.reshape([-1, hidden.shape[-1]]), labels.reshape(-1)
        chunk, hits = self.loss_chunk or max(len(where), 1), paddle.zeros([])
        with paddle.no_grad():
            for start in range(0, len(where), chunk):
                part = where[start : start + chunk]
                best = self.policy.logits(rows.gather(paddle.to_tensor(part))).argmax(axis=-1)
                hits = hits + (best == paddle.to_tensor(targets[part])).astype("float32").sum()
        return hits


def mtp_labels(batch: Batch, depth: int) -> NDArray[np.int64]:
    """Labels [B, S] of depth ``depth`` (0-based): shifted left by depth + 1, IGNORE where the target would lie beyond
    the end of the position's own sample."""
    shift, length = depth + 1, batch.labels.shape[1]
    shifted = np.full_like(batch.labels, IGNORE)
    shifted[:, : length - shift] = batch.labels[:, shift:]
    ends = batch.startend_row_indices[:, 0, :, 0]
    crosses = np.arange(length)[None, :] + shift >= ends
    shifted[crosses] = IGNORE
    return shifted


def _num_loss_tokens(labels: NDArray[np.int64]) -> float:
    return float(np.count_nonzero(labels != IGNORE))
