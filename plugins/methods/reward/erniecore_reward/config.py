"""The settings of reward models."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.method import MethodConfig


class RewardModelingConfig(MethodConfig):
    """A reward model learned from pairs."""

    margin_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the rows' `margin`: the better answer must win by margin_weight * margin; every row then "
        "needs a margin, 0 or more. 0: margins are not read.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed share of pairs in the wrong order.")
    center_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of (r_chosen + r_rejected)^2, which keeps rewards around 0; pairs alone leave their level open.",
    )
