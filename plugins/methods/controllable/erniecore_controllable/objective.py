"""The objective of controllable language modeling: the mean negative log-likelihood of the texts behind the attributes that a
step has not dropped. With probability ``plain`` none stays, so that the model also writes without any; else each is dropped with
probability ``dropout``. Held-out texts have all of their attributes, or none of them (``eval_plain``).

Wang et al., "ERNIE 3.0 Titan" (2021), arXiv:2112.12731: the controllable language modeling loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from erniecore.api import ConfigError
from erniecore.api.method import Batch, LossOutput, Tokenizer
from erniecore.api.training import NextTokenObjective
from erniecore_controllable.config import ControllableConfig
from erniecore_controllable.dropping import dropped


class ControllableObjective(NextTokenObjective):
    """See ``erniecore.api.Objective``.

    Raises:
        ConfigError: the model's vocabulary has no room for the soft tokens.
    """

    def __init__(self, config: ControllableConfig, policy: Any, tokenizer: Tokenizer) -> None:
        super().__init__(policy)
        size, needed = int(policy.architecture["vocab_size"]), tokenizer.vocab_size + sum(config.genres.values())
        if needed > size:
            raise ConfigError.at(
                "method.genres",
                f"the soft tokens need {needed} ids, the model has {size}: make it with vocab_size={needed} "
                "(ernie model init --size …,vocab_size=N)",
            )
        self.plain, self.dropout, self.eval_plain = config.plain, config.dropout, config.eval_plain

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> list[Batch]:
        """The batches with the attributes of this step."""
        return [dropped(batch, seed, self.plain, self.dropout) for batch in batches]

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """As of every language model, of what is read of the batch."""
        return super().normalizers(self._read(batch))

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """The loss of one micro-batch."""
        return super().__call__(self._read(batch), totals)

    def _read(self, batch: Batch) -> Batch:
        """The batch as it is, but for held-out texts that are read without attributes."""
        return batch if self.policy.training or not self.eval_plain else dropped(batch, 0, 1.0, 1.0)
