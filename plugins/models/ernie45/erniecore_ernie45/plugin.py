"""The plugin object of the dense ERNIE 4.5 models. Builds nothing itself: each hook imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore_ernie45.config import DenseConfig, ModelSection

if TYPE_CHECKING:
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_ernie45.model import Ernie45ForCausalLM


class Ernie45Plugin(ModelPlugin):
    """ERNIE 4.5 dense text models."""

    name = "ernie45"
    summary = "ERNIE 4.5 dense text models (0.3B)"
    Config = DenseConfig
    model_types = ("ernie4_5",)
    recipes = "erniecore_ernie45.recipes"

    @hookimpl
    def ernie_read_architecture(self, config: ModelSection) -> Json:
        """config.json as the settings want it, checked."""
        from erniecore_ernie45.architecture import Architecture, read_source

        source = read_source(config)
        Architecture.parse(source, where_of(config))
        return source

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> Ernie45ForCausalLM:
        """The model; its initializers say what new weights are."""
        from erniecore_ernie45.architecture import Architecture
        from erniecore_ernie45.model import Ernie45ForCausalLM

        return Ernie45ForCausalLM(Architecture.parse(architecture), dtype=dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan."""
        from erniecore_ernie45.architecture import Architecture

        return Architecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_ernie45.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in public checkpoints."""
        from erniecore_ernie45.architecture import Architecture
        from erniecore_ernie45.state import Ernie45StateAdapter

        return Ernie45StateAdapter(Architecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: ModelSection, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``."""
        from erniecore_ernie45.templating import read_tokenizer

        return read_tokenizer(directory, config.template)


def where_of(config: ModelSection) -> str:
    """What errors about the architecture call its source."""
    return str(Path(config.path) / "config.json") if config.path else "model.architecture"


plugin = Ernie45Plugin()
