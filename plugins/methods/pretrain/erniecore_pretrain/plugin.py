"""The plugin object of pre-training. Loss and encoding live beside it and are imported when built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_pretrain.config import PretrainConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, Tokenizer


class PretrainPlugin(MethodPlugin):
    """Learn every next token of documents."""

    name = "pt"
    summary = "Pre-training on documents and token files"
    Config = PretrainConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (
            1e-5,
            "ERNIEKit's example goes on from a trained model; from new weights 3e-4 (arXiv:2005.14165)",
        ),
        "train.warmup_ratio": (0.03, "that of `sft`"),
        "train.accumulation": (
            8,
            "eight sequences per step, as in the example configurations of ERNIEKit and LLaMA-Factory",
        ),
    }
    capabilities = frozenset({MethodCapability.MEAN_NLL})

    @hookimpl
    def ernie_build_objective(self, config: PretrainConfig, policy: Any) -> Objective:
        """Mean negative log-likelihood of every next token."""
        from erniecore_pretrain.objective import PretrainObjective

        return PretrainObjective(
            policy, document_mask=config.document_mask, mtp_weight=config.mtp_weight, accuracy=config.accuracy
        )

    @hookimpl
    def ernie_build_encoder(self, config: PretrainConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Encodes documents as training samples."""
        from erniecore_pretrain.encoder import PretrainEncoder

        return PretrainEncoder(tokenizer, max_length, keep_end=not config.document_mask)


plugin = PretrainPlugin()
