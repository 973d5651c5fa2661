"""The ``model`` section of the settings for ERNIE 3.0. Says what to build; reads no file."""

from __future__ import annotations

from erniecore_ernie45.config import ModelSection

from erniecore.api import Field


class Ernie3Config(ModelSection):
    """Section of the model: what training may change without changing the weights."""

    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability with which an output of an attention or MLP block is dropped in training. Drawn from the step's "
        "seed on each rank: above 0, runs on other numbers of processes are alike but not equal.",
    )
