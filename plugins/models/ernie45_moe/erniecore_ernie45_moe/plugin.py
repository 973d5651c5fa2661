"""The plugin object of the mixture-of-experts ERNIE 4.5 models. Each hook imports what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_ernie45.plugin import where_of

from erniecore.api import ConfigError, Json, hookimpl
from erniecore.api.model import ModelPlugin
from erniecore.api.parallel import ParallelConfig
from erniecore_ernie45_moe.config import MoeConfig

if TYPE_CHECKING:
    from erniecore.api.method import RunView
    from erniecore.api.model import DecoderShape, Layout, StateAdapter, Tokenizer
    from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM


class Ernie45MoePlugin(ModelPlugin):
    """ERNIE 4.5 mixture-of-experts text models."""

    name = "ernie45-moe"
    summary = "ERNIE 4.5 mixture-of-experts text models (21B-A3B, 300B-A47B)"
    Config = MoeConfig
    model_types = ("ernie4_5_moe",)
    recipes = "erniecore_ernie45_moe.recipes"

    @hookimpl
    def ernie_read_architecture(self, config: MoeConfig) -> Json:
        """config.json as the settings want it, checked."""
        from erniecore_ernie45_moe.architecture import MoeArchitecture, read_moe_source

        source = read_moe_source(config)
        MoeArchitecture.parse(source, where_of(config))
        return source

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """A capacity counts the tokens of whole rows."""
        parallel: ParallelConfig = settings.parallel
        for key in parallel.shards_positions() if settings.model.capacity else ():
            raise ConfigError.at(key, "a capacity counts the tokens of whole rows; leave model.capacity empty")

    @hookimpl
    def ernie_build_model(self, config: MoeConfig, architecture: Json, dtype: str) -> Ernie45MoeForCausalLM:
        """The model; its initializers say what new weights are."""
        from erniecore_ernie45_moe.architecture import MoeArchitecture
        from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM

        return Ernie45MoeForCausalLM(MoeArchitecture.parse(architecture), config, dtype=dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes for the plan."""
        from erniecore_ernie45_moe.architecture import MoeArchitecture

        return MoeArchitecture.parse(architecture).shape()

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        """Sharding rules; the same for every size."""
        from erniecore_ernie45_moe.layout import layout

        return layout()

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes in public checkpoints."""
        from erniecore_ernie45_moe.architecture import MoeArchitecture
        from erniecore_ernie45_moe.state import Ernie45MoeStateAdapter

        return Ernie45MoeStateAdapter(MoeArchitecture.parse(architecture))

    @hookimpl
    def ernie_build_tokenizer(self, config: MoeConfig, directory: Path) -> Tokenizer:
        """The SentencePiece tokenizer in ``directory``."""
        from erniecore_ernie45.templating import read_tokenizer

        return read_tokenizer(directory, config.template)

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """How unevenly experts were used in this step, and how undecided the routers are."""
        from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM

        return run.model.router_metrics() if isinstance(run.model, Ernie45MoeForCausalLM) else {}


plugin = Ernie45MoePlugin()
