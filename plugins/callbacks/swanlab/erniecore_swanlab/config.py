"""Settings of the callback ``swanlab``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from erniecore_curves import CurvesConfig

from erniecore.api import Field

if TYPE_CHECKING:
    pass


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("swanlab", min_length=1, description="Log directory, inside the run directory.")
    mode: Literal["offline", "online"] = Field(
        "offline",
        description="`online` sends to the server of the account of `swanlab login`; `offline` asks no server.",
    )
    project: str = Field(
        "erniecore", min_length=1, max_length=100, pattern=r"^[0-9a-zA-Z_\-+.]+$", description="Project of the run."
    )
    workspace: str = Field("", description="User or organization; empty: the default of the account.")
