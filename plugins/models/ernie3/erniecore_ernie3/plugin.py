"""The plugin object of ERNIE 3.0. Builds nothing itself: each hook imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from erniecore_ernie45.plugin import where_of

from erniecore.api import Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore_ernie3.config import Ernie3Config

if TYPE_CHECKING:
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_ernie3.model import Ernie3


class Ernie3Plugin(ModelPlugin):
    """ERNIE 3.0 (arXiv:2107.02137): one universal module, task modules for understanding and generation."""

    name = "ernie3"
    summary = "ERNIE 3.0: universal module, task modules for understanding and generation, recurrence memory"
    Config = Ernie3Config
    model_types = ("ernie3",)
    recipes = "erniecore_ernie3.recipes"
    expected_failures: ClassVar[dict[str, str]] = {
        "model_gradients_reach_everything": "next tokens are predicted by the module for generation; that for understanding and "
        "its heads learn from the other objectives of ernie3-pretrain",
    }

    @hookimpl
    def ernie_read_architecture(self, config: Ernie3Config) -> Json:
        """config.json as the settings want it, checked."""
        from erniecore_ernie45.architecture import read_source

        from erniecore_ernie3.architecture import Architecture

        source = read_source(config)
        Architecture.parse(source, where_of(config))
        return source

    @hookimpl
    def ernie_build_model(self, config: Ernie3Config, architecture: Json, dtype: str) -> Ernie3:
        """The model; its initializers say what new weights are."""
        from erniecore_ernie3.architecture import Architecture
        from erniecore_ernie3.model import Ernie3

        return Ernie3(Architecture.parse(architecture), dropout=config.dropout, dtype=dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan."""
        from erniecore_ernie3.architecture import Architecture

        return Architecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_ernie3.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in checkpoints."""
        from erniecore_ernie3.architecture import Architecture
        from erniecore_ernie3.state import Ernie3StateAdapter

        return Ernie3StateAdapter(Architecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: Ernie3Config, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``."""
        from erniecore_ernie45.templating import read_tokenizer

        return read_tokenizer(directory, config.template)


plugin = Ernie3Plugin()
