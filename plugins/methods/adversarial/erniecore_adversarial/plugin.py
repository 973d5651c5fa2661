"""The plugin object of the adversarial method. Loss and encoding are imported when they are built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_adversarial.config import AdversarialConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, Tokenizer


class AdversarialPlugin(MethodPlugin):
    """Learn natural text, and to tell it from generated text."""

    name = "adversarial"
    summary = "Language modeling with a self-supervised adversarial loss: natural against generated text"
    Config = AdversarialConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (1e-5, "that of `pt` and `reward`"),
        "train.warmup_ratio": (0.03, "that of `sft`"),
        "train.accumulation": (8, "that of `pt`"),
    }
    capabilities = frozenset({MethodCapability.SCORE_HEAD})

    @hookimpl
    def ernie_build_objective(self, config: AdversarialConfig, policy: Any) -> Objective:
        """Next tokens of natural text, and the adversarial loss."""
        from erniecore_adversarial.objective import AdversarialObjective

        return AdversarialObjective(policy, weight=config.weight, lm_weight=config.lm_weight)

    @hookimpl
    def ernie_build_encoder(self, config: AdversarialConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Documents with a marker at their end."""
        from erniecore_adversarial.encoder import AdversarialEncoder

        return AdversarialEncoder(tokenizer, max_length)


plugin = AdversarialPlugin()
