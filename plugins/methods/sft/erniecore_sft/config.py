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
