"""Settings of the optimizer ``lisa``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api import Field
from erniecore.api.optimizer import (
    AdamWConfig,
)

if TYPE_CHECKING:
    pass


class LisaConfig(AdamWConfig):
    """AdamW of few layers at a time: embedding, head and whatever is in no numbered layer are always trained, of the layers a few
    that change every `period` steps (arXiv:2403.17919). The other settings are AdamW's."""

    layers: int = Field(
        2, ge=1, description="Layers that are trained at a time. As many as the model has, or more: all, as with AdamW."
    )
    period: int = Field(20, ge=1, description="Steps after which other layers are chosen.")
    seed: int = Field(0, ge=0, description="Of the choice. It does not depend on `run.seed`.")
