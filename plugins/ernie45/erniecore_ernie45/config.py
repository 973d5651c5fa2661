"""The ``model`` section of the settings for ERNIE 4.5 models. Says what to build; reads no file."""

from __future__ import annotations

from typing import Any

from erniecore.api import Field, Section


class ModelSection(Section):
    """What every ERNIE 4.5 text model can be told."""

    path: str = Field(
        "", description="Model directory: config.json, safetensors and tokenizer files. Empty: new weights."
    )
    size: str = Field(
        "", description="Recipe that describes the model when there is no `path`, e.g. `tiny`; see the plugin's README."
    )
    architecture: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of config.json; they replace those of the file in `path`. A recipe fills all of them.",
    )
    tokenizer: str = Field("", description="Directory of the tokenizer; empty: `path`.")
    template: str = Field(
        "",
        description="Chat template: `ernie45`, `thinking`, or the path of a .jinja file. Empty: the tokenizer directory's own "
        "(chat_template.jinja or a key of tokenizer_config.json), else `ernie45`.",
    )


class DenseConfig(ModelSection):
    """Section of the dense model; it has nothing of its own."""
