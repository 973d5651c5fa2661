"""The loss of supervised fine-tuning: mean negative log-likelihood of the loss tokens of the assistant's turns, if asked for with
noise on the embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api.training import NextTokenObjective
from erniecore_sft.noise import EmbeddingNoise

if TYPE_CHECKING:
    from erniecore.api.method import Batch, LossOutput


class SftObjective(NextTokenObjective):
    """The loss that all methods of next-token prediction share; the encoder's labels say what is learned.

    Args:
        neftune_alpha: of the noise on embeddings while the model trains, see ``noise.py``; 0: there is none.
    """

    def __init__(self, policy: Any, *, neftune_alpha: float = 0.0, **options: Any) -> None:
        super().__init__(policy, **options)
        self.noise = EmbeddingNoise(policy, neftune_alpha) if neftune_alpha else None

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The batches as they are; the noise of the step begins."""
        if self.noise is not None:
            self.noise.seed = seed
        return batches

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; an evaluation has no noise."""
        if self.noise is None or not self.policy.training:
            return super().__call__(batch, totals)
        with self.noise.added(batch):
            return super().__call__(batch, totals)
