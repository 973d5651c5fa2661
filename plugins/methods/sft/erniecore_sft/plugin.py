"""The plugin object of supervised fine-tuning. Loss and encoding live beside it and are imported when built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_sft.config import SftConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, Tokenizer


class SftPlugin(MethodPlugin):
    """Learn the assistant's turns of conversations."""

    name = "sft"
    summary = "Supervised fine-tuning on the assistant's turns"
    Config = SftConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (2e-5, "Stanford Alpaca; ERNIEKit's examples have 1e-5"),
        "train.warmup_ratio": (0.03, "Stanford Alpaca"),
        "train.accumulation": (
            8,
            "eight sequences per step, as in the example configurations of ERNIEKit and LLaMA-Factory",
        ),
    }
    capabilities = frozenset({MethodCapability.MEAN_NLL})

    @hookimpl
    def ernie_build_objective(self, config: SftConfig, policy: Any) -> Objective:
        """Mean negative log-likelihood of the loss tokens."""
        from erniecore_sft.objective import SftObjective

        options = {"mtp_weight": config.mtp_weight, "accuracy": config.accuracy}
        return SftObjective(policy, neftune_alpha=config.neftune_alpha, **options)

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Noise on embeddings needs the whole sample and the first layer on every rank. Raises ``ConfigError``."""
        if not settings.method.neftune_alpha:
            return
        axes = [axis for axis in ("pipeline", "context") if settings.parallel.degree(axis) != 1]
        if axes:
            message = f"noise on embeddings is not computed with parallel.{axes[0]}; set it to 0, or choose other axes"
            raise ConfigError.at("method.neftune_alpha", message)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int, too_long: str) -> Encoder:
        """Encodes conversations as training samples; rows that are too long are truncated unless ``data.too_long`` says
        otherwise."""
        from erniecore_sft.encoder import SftEncoder

        return SftEncoder(tokenizer, max_length, "truncate" if too_long == "auto" else too_long)


plugin = SftPlugin()
