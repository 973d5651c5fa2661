"""The plugin object of ERNIE 5.0. Builds nothing itself: each hook imports what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from erniecore_ernie45.plugin import where_of

from erniecore.api import Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore_ernie5.config import Ernie5Config

if TYPE_CHECKING:
    from erniecore.api.method import RunView
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_ernie5.model import Ernie5ForCausalLM


class Ernie5Plugin(ModelPlugin):
    """ERNIE 5.0 (arXiv:2602.04705): text, images and audio in one mixture of experts."""

    name = "ernie5"
    summary = "ERNIE 5.0: text, images and audio in one mixture of experts, in and out"
    Config = Ernie5Config
    model_types = ("ernie5",)
    recipes = "erniecore_ernie5.recipes"
    expected_failures: ClassVar[dict[str, str]] = {
        "model_gradients_reach_everything": "next tokens of text pass neither what brings images and audio in nor the heads of "
        "bits and codes, which learn from rows of next-group",
    }

    @hookimpl
    def ernie_read_architecture(self, config: Ernie5Config) -> Json:
        """config.json as the settings want it, checked."""
        from erniecore_ernie45_moe.architecture import read_moe_source

        from erniecore_ernie5.architecture import Ernie5Architecture

        source = read_moe_source(config)
        Ernie5Architecture.parse(source, where_of(config))
        return source

    @hookimpl
    def ernie_build_model(self, config: Ernie5Config, architecture: Json, dtype: str) -> Ernie5ForCausalLM:
        """The model; its initializers say what new weights are."""
        from erniecore_ernie5.architecture import Ernie5Architecture
        from erniecore_ernie5.model import Ernie5ForCausalLM

        return Ernie5ForCausalLM(Ernie5Architecture.parse(architecture), config, dtype=dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan."""
        from erniecore_ernie5.architecture import Ernie5Architecture

        return Ernie5Architecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_ernie5.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in checkpoints."""
        from erniecore_ernie5.architecture import Ernie5Architecture
        from erniecore_ernie5.state import Ernie5StateAdapter

        return Ernie5StateAdapter(Ernie5Architecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: Ernie5Config, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``, which also knows tokens of images and audio."""
        from erniecore_ernie45_moe.architecture import read_moe_source

        from erniecore_ernie5.architecture import Ernie5Architecture
        from erniecore_ernie5.tokenizer import read_tokenizer

        arch = Ernie5Architecture.parse(read_moe_source(config), where_of(config))
        return read_tokenizer(directory, config.template, arch)

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """How evenly experts are used, and how much modalities share them."""
        from erniecore_ernie5.model import Ernie5ForCausalLM

        return run.model.router_metrics() if isinstance(run.model, Ernie5ForCausalLM) else {}


plugin = Ernie5Plugin()
