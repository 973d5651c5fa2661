"""The loss of next-group prediction: the weighted sum of the means over what is to be predicted in the whole step,

    L = w_text mean(-log p(token)) + w_image mean(-log p(bit)) + w_audio mean(-log p(code))

Bits of one token are predicted independently of each other, and weigh more in early scales; codes of a frame level by level, each
with those of the levels before it. A modality of which the step has nothing adds nothing.

Letters: B batch, S positions, H hidden, d bits of a token, L levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_ernie5.model import Ernie5ForCausalLM, MediaFeatures
from erniecore_ernie5.sequence import FIELDS
from numpy.typing import NDArray

from erniecore.api import PluginError
from erniecore.api.method import IGNORE, Batch, LossOutput
from erniecore.api.training import NextTokenObjective
from erniecore_next_group.config import NextGroupConfig
from erniecore_next_group.history import corrupted

if TYPE_CHECKING:
    from paddle import Tensor

    Metrics = dict[str, tuple[Tensor | float, float]]

#: what the model gets of a batch's fields
INPUTS = tuple(name for name in FIELDS if name != "bits")


class NextGroupObjective(NextTokenObjective):
    """See ``erniecore.api.method.Objective``.

    Args:
        policy: an ``ernie5`` model; for documents without fields any ``CausalLM``.
    """

    is_nll = False

    def __init__(self, config: NextGroupConfig, policy: Any) -> None:
        super().__init__(policy, mtp_weight=config.mtp_weight)
        self.config = config

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """Batches with corrupted histories."""
        if not self.config.flip_rate or not isinstance(self.policy, Ernie5ForCausalLM):
            return batches
        image = self.policy.media_arch.image
        return [corrupted(batch, image, self.config.flip_rate, seed) if batch.fields else batch for batch in batches]

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """As for text; ``bits``: weights of all bits; ``codes``: of frames that are to be predicted."""
        counts = dict(super().normalizers(batch))
        if batch.fields:
            counts["bits"] = float((self.bit_weights(batch)).sum()) * batch.fields["bits"].shape[-1]
            counts["codes"] = float(np.count_nonzero(batch.fields["next_codes"]))
        return counts

    def bit_weights(self, batch: Batch) -> NDArray[np.float64]:
        """Weight of each bit of a token [B, S]; 0 where no bits are to be predicted."""
        drawn = (batch.fields["bits"] != 0).any(axis=-1)
        scales = self.policy.media_arch.image.scales
        weights = np.array([(scales[-1] / side) ** (2 * self.config.early_scales) for side in (*scales, scales[-1])])
        return np.where(drawn, weights[batch.fields["scales"]], 0.0)

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``loss``, ``<modality>/loss``, ``<modality>/accuracy`` of bits and of codes."""
        if batch.fields and not isinstance(self.policy, Ernie5ForCausalLM):
            raise PluginError("only a model with tokens of images and audio learns rows of parts", expected="ernie5")
        features = self.policy.features(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
            **({name: paddle.to_tensor(batch.fields[name]) for name in INPUTS} if batch.fields else {}),
        )
        count, metrics = float(np.count_nonzero(batch.labels != IGNORE)), dict[str, Any]()
        text = self._nll(features.hidden, batch.labels)
        loss = text * (self.config.text_weight / (totals["tokens"] or 1.0))
        metrics["text/loss"] = text.detach(), count
        if isinstance(features, MediaFeatures):
            bits, codes = self._bits(features.hidden, batch, metrics), self._codes(features.levels, batch, metrics)
            loss = loss + bits * (self.config.image_weight / (totals["bits"] or 1.0))
            loss = loss + codes * (self.config.audio_weight / (totals["codes"] or 1.0))
        share = batch.num_tokens / (totals["seen"] or 1.0)
        metrics["loss"] = loss.detach(), share
        return LossOutput(loss=self.with_side_losses(loss, features, batch, totals, metrics), metrics=metrics)

    def _bits(self, hidden: Tensor, batch: Batch, metrics: Metrics) -> Tensor:
        """Weighted sum of -log p over bits."""
        weights = self.bit_weights(batch).reshape(-1)
        (where,) = np.nonzero(weights)
        # without bits the head still gets a gradient, of zeros: other ranks may have some
        rows = paddle.to_tensor(where if len(where) else np.zeros(1, np.int64))
        weights = weights[where] if len(where) else np.zeros(1)
        logits = self.policy.bit_logits(hidden.reshape([-1, hidden.shape[-1]]).gather(rows))
        targets = batch.fields["bits"].reshape(-1, logits.shape[-1])[rows.numpy()] > 0
        wanted = paddle.to_tensor(targets.astype(np.float32))
        losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(axis=-1)
        total: Tensor = (losses * paddle.to_tensor(weights.astype(np.float32))).sum()
        if len(where):
            hits = ((logits.detach() > 0) == (wanted > 0)).astype("float32").sum()
            metrics["image/loss"] = total.detach(), float(weights.sum()) * logits.shape[-1]
            metrics["image/accuracy"] = hits, float(len(where) * logits.shape[-1])
        return total

    def _codes(self, levels: Sequence[Tensor], batch: Batch, metrics: Metrics) -> Tensor:
        """Sum of -log p over codes."""
        total, hits, count = paddle.zeros([]), paddle.zeros([]), 0
        for level, hidden in enumerate(levels):
            targets = batch.fields["next_codes"][..., level].reshape(-1).astype(np.int64)
            (where,) = np.nonzero(targets)
            rows = where if len(where) else np.zeros(1, np.int64)
            logits = self.policy.code_logits(
                level, hidden.reshape([-1, hidden.shape[-1]]).gather(paddle.to_tensor(rows))
            )
            wanted = paddle.to_tensor((targets[rows] - 1).clip(min=0))
            losses = F.cross_entropy(logits, wanted, reduction="sum")
            total = total + (losses if len(where) else losses * 0.0)
            hits = hits + (logits.detach().argmax(axis=-1) == wanted).astype("float32").sum() * float(bool(len(where)))
            count += len(where)
        # embeddings of codes that no frame of the batch has
        total = total + sum((p.sum() for p in self.policy.audio.parameters()), start=paddle.zeros([])) * 0.0
        total = total + sum((p.sum() for p in self.policy.image.parameters()), start=paddle.zeros([])) * 0.0
        if count:
            metrics["audio/loss"], metrics["audio/accuracy"] = (total.detach(), float(count)), (hits, float(count))
        return total
