"""Settings of the callback ``wandb``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore_curves import CurvesConfig

from erniecore.api import Field

if TYPE_CHECKING:
    pass


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("wandb", min_length=1, description="Log directory, inside the run directory.")
    mode: Literal["offline", "online"] = Field(
        "offline", description="`online` sends to the server of the account of `wandb login`; `offline` asks no server."
    )
    project: str = Field("erniecore", min_length=1, description="Project that the run belongs to.")
    entity: str = Field("", description="User or team that owns the project; empty: the default of the account.")
