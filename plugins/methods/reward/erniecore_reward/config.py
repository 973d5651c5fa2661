"""The settings of reward models."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class RewardModelingConfig(MethodConfig):
    """Settings of a reward model trained on preference pairs."""

    margin_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the rows' `margin` in the loss: the target difference is margin_weight * margin. Every row then "
        "needs a margin of at least 0. 0: margins are ignored.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed fraction of pairs with swapped labels.")
    center_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of (r_chosen + r_rejected)^2, which centers rewards at 0; pairs alone do not determine their mean.",
    )
