"""The ``model`` section of the settings for ERNIE 4.5 models. Says what to build; reads no file."""

from __future__ import annotations

from erniecore.api import Field
from erniecore.api.model import ModelConfig


class ModelSection(ModelConfig):
    """What every ERNIE 4.5 text model can be told."""

    template: str = Field(
        "",
        description="Chat template: `ernie45`, `thinking`, or the path of a .jinja file. Empty: the tokenizer directory's own "
        "(chat_template.jinja or a key of tokenizer_config.json), else `ernie45`.",
    )


class DenseConfig(ModelSection):
    """Section of the dense model; it has nothing of its own."""
