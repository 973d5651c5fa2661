"""The settings of pre-training."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class PretrainConfig(MethodConfig):
    """Pre-training on documents, from text or from indexed token files."""

    document_mask: bool = Field(
        True,
        description="Documents of a packed sequence do not attend to each other, and positions restart with each. `false`: plain "
        "causal attention across documents; the first token of a document is predicted from the previous one.",
    )
    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token prediction loss, for models with MTP layers."
    )
    accuracy: bool = Field(
        False,
        description="Also report top-1 accuracy: the fraction of tokens that are the most likely one. Takes time.",
    )
