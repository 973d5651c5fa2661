"""The settings of the method."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class NextGroupConfig(MethodConfig):
    """How text, images and audio weigh, and how drawing is trained."""

    text_weight: float = Field(1.0, ge=0, description="Weight of the mean loss of text tokens.")
    image_weight: float = Field(1.0, ge=0, description="Weight of the mean loss of a bit of an image.")
    audio_weight: float = Field(1.0, ge=0, description="Weight of the mean loss of a code of a frame.")
    early_scales: float = Field(
        0.5,
        ge=0,
        le=1,
        description="How much more a token of an early scale of an image weighs: (tokens of the last scale / tokens of its "
        "scale) to this power. 0: every token weighs the same, 1: every scale does.",
    )
    flip_rate: float = Field(
        0.2,
        ge=0,
        le=0.5,
        description="Corrupted history: of each image a share of the bits, drawn between 0 and this, enters later scales with "
        "the wrong sign, and these learn to correct it. 0: none, history as it should be.",
    )
    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token-prediction loss of text, for models with such layers."
    )
