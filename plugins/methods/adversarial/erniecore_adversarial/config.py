"""The settings of the adversarial loss."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class AdversarialConfig(MethodConfig):
    """Language modeling on natural text, and telling it from generated text."""

    weight: float = Field(1.0, gt=0, description="Weight of the adversarial loss, per text.")
    lm_weight: float = Field(
        1.0,
        ge=0,
        description="Weight of the negative log-likelihood of natural text, per token; generated text has none.",
    )
