"""The plugin object of the vision-language ERNIE 4.5 models. Each hook imports what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_ernie45.plugin import where_of
from erniecore_ernie45_moe.plugin import plugin as text_plugin

from erniecore.api import ConfigError, Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore_ernie45_vl.config import VlConfig

if TYPE_CHECKING:
    from erniecore.api.method import RunView
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_ernie45_vl.model import Ernie45VlForConditionalGeneration


class Ernie45VlPlugin(ModelPlugin):
    """ERNIE 4.5 vision-language models."""

    name = "ernie45-vl"
    summary = "ERNIE 4.5 vision-language models (VL-28B-A3B, VL-424B-A47B), trained whole or in parts"
    Config = VlConfig
    model_types = ("ernie4_5_moe_vl", "ernie4_5_vl_moe")
    recipes = "erniecore_ernie45_vl.recipes"

    def conformance_media(self, architecture: Json) -> list[tuple[list[int], dict[str, Any]]]:
        """Four rows of one length, with one or two images each."""
        from erniecore_ernie45_vl.architecture import VlArchitecture
        from erniecore_ernie45_vl.examples import example_rows

        return example_rows(VlArchitecture.parse(architecture))

    @hookimpl
    def ernie_read_architecture(self, config: VlConfig) -> Json:
        """config.json in the flat form of the published checkpoints, as the settings want it, checked."""
        from erniecore_ernie45_vl.architecture import VlArchitecture, read_vl_source

        where = where_of(config)
        source = read_vl_source(config, where)
        VlArchitecture.parse(source, where)
        return source

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """As for text models; an adapter freezes the model, so that there are no parts to choose."""
        text_plugin.ernie_check_settings(settings=settings)
        model = settings.model
        for key, usual in (("train", ("text",)), ("lr_factors", {})):
            if settings.adapter is not None and isinstance(model, VlConfig) and model.model_dump()[key] != usual:
                fix = "an adapter trains what adapter.targets names (presets text, tower, resampler): leave this out"
                raise ConfigError.at(f"model.{key}", fix)

    @hookimpl
    def ernie_build_model(self, config: VlConfig, architecture: Json, dtype: str) -> Ernie45VlForConditionalGeneration:
        """The model; its initializers say what new weights are."""
        from erniecore_ernie45_vl.architecture import VlArchitecture
        from erniecore_ernie45_vl.model import Ernie45VlForConditionalGeneration
        from erniecore_ernie45_vl.parts import choose

        model = Ernie45VlForConditionalGeneration(VlArchitecture.parse(architecture), config, dtype=dtype)
        choose(model, config.train, config.lr_factors)
        return model

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan: of rows of text, which is what runs train."""
        from erniecore_ernie45_vl.architecture import VlArchitecture

        return VlArchitecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_ernie45_vl.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in public checkpoints."""
        from erniecore_ernie45_vl.architecture import VlArchitecture
        from erniecore_ernie45_vl.state import Ernie45VlStateAdapter

        return Ernie45VlStateAdapter(VlArchitecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: VlConfig, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``, with a chat template that also writes images."""
        from erniecore_ernie45_vl.templating import read_vl_tokenizer

        return read_vl_tokenizer(directory, config)

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """Of the routers, as for text models."""
        metrics: Mapping[str, float] = text_plugin.ernie_collect_metrics(run=run)
        return metrics


plugin = Ernie45VlPlugin()
