"""The plugin object of the model `acme-lm`. Each hook imports what it needs."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, ConfigError, Json, hookimpl
from erniecore.api.model import DecoderShape, LayerShape, Layout, ModelConfig, ModelPlugin, StateAdapter, Tokenizer

if TYPE_CHECKING:
    from erniecore_acme.lm.model import AcmeLmModel

#: Keys that an architecture must have.
KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rope_theta",
    "rms_norm_eps",
)


class AcmeLmPlugin(ModelPlugin):
    """A small decoder-only language model."""

    name = "acme-lm"
    summary = "a small decoder-only language model"
    model_types = ("acme_lm",)
    recipes = "erniecore_acme.lm.recipes"

    @hookimpl
    def ernie_read_architecture(self, config: ModelConfig) -> Json:
        found: dict[str, Any] = {}
        if config.path:
            file = Path(config.path) / "config.json"
            if not file.is_file():
                raise CheckpointError("there is no config.json", where=config.path, expected="a model directory")
            found = json.loads(file.read_text(encoding="utf-8"))
        found = {**found, **config.architecture}
        missing = [key for key in KEYS if key not in found]
        if missing:
            raise ConfigError.at("model.architecture", f"misses {', '.join(missing)}; choose a recipe with model.size")
        return found

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> AcmeLmModel:
        from erniecore_acme.lm.model import build

        return build(architecture, dtype)

    @hookimpl
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Shape of the model, for `ernie plan`."""
        heads, hidden = architecture["num_attention_heads"], architecture["hidden_size"]
        layer = LayerShape(heads, heads, hidden // heads, architecture["intermediate_size"])
        return DecoderShape(hidden, architecture["vocab_size"], False, (layer,) * architecture["num_hidden_layers"])

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        return Layout(
            (
                ("embed_tokens.weight", "vocab"),
                ("lm_head.weight", "vocab"),
                ("*.[qkv]_proj.weight", "column"),
                ("*.gate_proj.weight", "column"),
                ("*.up_proj.weight", "column"),
                ("*.o_proj.weight", "row"),
                ("*.down_proj.weight", "row"),
                ("*norm.weight", "replicate"),
            )
        )

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        from erniecore_acme.lm.state import AcmeLmStateAdapter

        return AcmeLmStateAdapter(architecture)

    @hookimpl
    def ernie_build_tokenizer(self, directory: Path) -> Tokenizer:
        from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer

        source = resources.files("erniecore_acme.lm") / "chat.jinja"
        template = JinjaChatTemplate(source.read_text(encoding="utf-8"), turn_end="<|end_of_sentence|>", stop="</s>")
        return SentencePieceTokenizer.from_directory(directory, template)


plugin = AcmeLmPlugin()
