"""The ``model`` section of the settings for ERNIE 4.5 models. Says what to build; reads no file."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.model import ModelConfig


class ModelSection(ModelConfig):
    """What every ERNIE 4.5 text model can be told."""

    template: str = Field(
        "",
        description="Chat template: `ernie45`, `thinking`, or the path of a .jinja file. Empty: the tokenizer directory's own "
        "(chat_template.jinja or a key of tokenizer_config.json), else `ernie45`.",
    )


class DecoderSection(ModelSection):
    """What every model with the decoder layers of ERNIE 4.5 can be told: how the residual stream is scaled."""

    gpas: Literal["off", "straight-through", "plain"] = Field(
        "off",
        description="Scale the residual stream down by a learned gate per layer (GPAS, arXiv:2506.22049). `straight-through`: "
        "its gradient passes unchanged, as in the paper; `plain`: the gradient is scaled too. A directory without gates gets "
        "some that change nothing at first; config.json remembers them, and a directory that has them needs no setting.",
    )
    layer_norm_scaling: bool = Field(
        False,
        description="Multiply what the norms of layer l give by 1 / sqrt(l) (arXiv:2502.05795); for new weights. config.json "
        "remembers it.",
    )


class DenseConfig(DecoderSection):
    """Section of the dense model; it has nothing of its own."""
