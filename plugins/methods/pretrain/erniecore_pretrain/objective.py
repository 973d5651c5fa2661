"""The loss of pre-training: mean negative log-likelihood of every next token, with or without borders between documents.

The mean is over all loss tokens of the step, on all micro-batches and ranks: the token-balanced loss, in which a
token weighs the same whatever document, row or rank it is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from erniecore.api.method import IGNORE, Batch, LossOutput
from erniecore.api.training import NextTokenObjective


class PretrainObjective(NextTokenObjective):
    """See ``erniecore.api.Objective``.

    Args:
        policy: a ``CausalLM``.
        document_mask: as in the settings.
        mtp_weight, accuracy: see ``NextTokenObjective``.
    """

    def __init__(
        self, policy: Any, *, document_mask: bool = True, mtp_weight: float = 0.1, accuracy: bool = False
    ) -> None:
        super().__init__(policy, mtp_weight=mtp_weight, accuracy=accuracy)
        self.document_mask = document_mask

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``tokens``: learned ones; ``seen``: all but padding; ``ahead_n``: learned at depth n."""
        return super().normalizers(batch if self.document_mask else without_borders(batch))

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``loss``, ``accuracy``, ``mtp/loss`` and ``router/*`` as (sum, weight)."""
        return super().__call__(batch if self.document_mask else without_borders(batch), totals)


def without_borders(batch: Batch) -> Batch:
    """The same rows as one causal text each: everything before a position is seen, positions count through the row, and
    the last token of a document predicts the first one of the next. Padding stays unseen."""
    columns = np.arange(batch.input_ids.shape[1])
    ends = batch.startend_row_indices[:, 0, :, 0]
    real = ends > columns  # a padding column ends at itself
    lengths = real.sum(axis=1)
    bounds = np.where(real, lengths[:, None], ends).astype(np.int32)
    following = np.roll(batch.input_ids, -1, axis=1)
    joined = (batch.labels == IGNORE) & (columns + 1 == ends) & (columns + 1 < lengths[:, None])
    return replace(
        batch,
        labels=np.where(joined, following, batch.labels),
        position_ids=np.where(real, columns, batch.position_ids),
        startend_row_indices=bounds[:, None, :, None],
    )
