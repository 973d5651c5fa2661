"""The objective of controllable language modeling: the mean negative log-likelihood of the texts behind the attributes that a
step has not dropped. With probability ``plain`` none stays, so that the model also writes without any; else each is dropped with
probability ``dropout``. Held-out texts have all of their attributes.

Wang et al., "ERNIE 3.0 Titan" (2021), arXiv:2112.12731: the controllable language modeling loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore.api import ConfigError
from erniecore.api.method import Batch, Tokenizer
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
        self.plain, self.dropout = config.plain, config.dropout

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> list[Batch]:
        """The batches with the attributes of this step."""
        return [dropped(batch, seed, self.plain, self.dropout) for batch in batches]
