"""A good model plugin over :class:`ToyLM`: what every check of kind ``model`` accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, EnvironmentFault, Json, hookimpl
from erniecore.api.model import Layout, ModelConfig, ModelPlugin, StateAdapter, TensorMap, Tokenizer
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE
from erniecore_conformance.toys.tokenizer import ToyTokenizer

if TYPE_CHECKING:
    from erniecore_conformance.toys.paddle_lm import ToyLM


def transpose(arrays: Sequence[Any]) -> Any:
    """[out, in] <-> [in, out]."""
    return arrays[0].T.copy()


class ToyStateAdapter:
    """Public names are ours after ``toy.``; matrices are stored [out, in]."""

    def __init__(self, architecture: Json) -> None:
        self.architecture = architecture

    def layout_of(self, names: Sequence[str]) -> str:
        """The only layout, ``pt``."""
        if not all(name.startswith("toy.") for name in names):
            raise CheckpointError("not a toy checkpoint")
        return "pt"

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """One map per parameter."""
        a = self.architecture
        V, H, inner = a["vocab_size"], a["hidden_size"], a["intermediate_size"]
        maps = [self._same("embed_tokens.weight", V, H), self._matrix("lm_head.weight", H, V)]
        maps += [self._same(f"norm.{part}", H) for part in ("weight", "bias")]
        for i in range(a["num_hidden_layers"]):
            layer = f"layers.{i}"
            maps += [self._matrix(f"{layer}.self_attn.{p}_proj.weight", H, H) for p in "qkvo"]
            maps += [self._matrix(f"{layer}.mlp.{p}_proj.weight", H, inner) for p in ("gate", "up")]
            maps += [self._matrix(f"{layer}.mlp.down_proj.weight", inner, H)]
            norms = ("input_layernorm", "post_attention_layernorm")
            maps += [self._same(f"{layer}.{norm}.{part}", H) for norm in norms for part in ("weight", "bias")]
        return maps

    def ignored(self, name: str) -> bool:
        """No tensor of a checkpoint is ignored."""
        return False

    def _same(self, name: str, *shape: int) -> TensorMap:
        return TensorMap(name, shape, (f"toy.{name}",), (shape,), lambda arrays: arrays[0], lambda ours: [ours])

    def _matrix(self, name: str, rows: int, columns: int) -> TensorMap:
        stored = ((columns, rows),)
        return TensorMap(name, (rows, columns), (f"toy.{name}",), stored, transpose, lambda ours: [transpose([ours])])


class ToyModelPlugin(ModelPlugin):
    """A language model of six thousand parameters."""

    name = "toy"
    summary = "a language model for the conformance kit"
    Config = ModelConfig
    model_types = ("toy",)

    def conformance_architecture(self) -> Json:
        """The only size that there is."""
        return TOY_ARCHITECTURE

    @hookimpl
    def ernie_read_architecture(self, config: ModelConfig) -> Json:
        if not config.path:
            return TOY_ARCHITECTURE
        found: Json = json.loads(Path(config.path, "config.json").read_text(encoding="utf-8"))
        return found

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> ToyLM:
        from erniecore_conformance.toys.paddle_lm import ToyLM

        model = ToyLM(architecture)
        model.to(dtype=dtype)
        return model

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        return Layout(
            (
                ("embed_tokens.weight", "vocab"),
                ("lm_head.weight", "vocab"),
                ("*.[qkv]_proj.weight", "column"),
                ("*.gate_proj.weight", "column"),
                ("*.up_proj.weight", "column"),
                ("*.[od]*_proj.weight", "row"),
                ("*norm.*", "replicate"),
            )
        )

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        return ToyStateAdapter(architecture)

    @hookimpl
    def ernie_build_tokenizer(self, directory: Path) -> Tokenizer:
        if not (directory / "toy_tokenizer.json").exists():
            raise EnvironmentFault("no tokenizer here", where=str(directory), fix="save one there")
        return ToyTokenizer()


plugin = ToyModelPlugin()
