"""The settings of supervised fine-tuning."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class SftConfig(MethodConfig):
    """Supervised fine-tuning on conversations."""

    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token prediction loss, for models with MTP layers."
    )
    accuracy: bool = Field(
        False,
        description="Also report top-1 accuracy: the fraction of loss tokens that are the most likely one. Takes time.",
    )
    neftune_alpha: float = Field(
        0.0,
        ge=0,
        description="NEFTune: uniform noise of at most this over sqrt(tokens of the sample x width) on the embeddings, in "
        "training only (arXiv:2310.05914, where 5 to 15 were good). Not with `parallel.pipeline` or `parallel.context`. 0: none.",
    )
