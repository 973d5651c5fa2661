"""Settings of the callback ``mlflow``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_curves import CurvesConfig

from erniecore.api import Field

if TYPE_CHECKING:
    pass


class Config(CurvesConfig):
    """What is logged where."""

    directory: str = Field("mlflow", min_length=1, description="Log directory, inside the run directory.")
    tracking_uri: str = Field(
        "", description="Tracking server, such as `http://127.0.0.1:5000`; empty: a database in the log directory."
    )
    experiment: str = Field("erniecore", min_length=1, description="Experiment that the run belongs to.")
