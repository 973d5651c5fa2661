"""A bigram model: the next token depends on the present one alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erniecore.api import CheckpointError, hookimpl
from erniecore.api.model import Features, Json, Layout, ModelConfig, ModelPlugin, StateAdapter, TensorMap, Tokenizer

NAMES = ("embed.weight", "lm_head.weight")


class Names(StateAdapter):
    """Public checkpoints have our names and shapes."""

    def __init__(self, vocab: int, hidden: int) -> None:
        self.shapes = dict(zip(NAMES, ((vocab, hidden), (hidden, vocab)), strict=True))

    def layout_of(self, names: Sequence[str]) -> str:
        if set(names) != set(NAMES):
            raise CheckpointError("not a checkpoint of this model")
        return "pt"

    def maps(self, layout: str, names: Sequence[str] = ()) -> list[TensorMap]:
        return [
            TensorMap(name, shape, (name,), (shape,), lambda arrays: arrays[0], lambda ours: [ours])
            for name, shape in self.shapes.items()
        ]

    def ignored(self, name: str) -> bool:
        return False


def build(architecture: Json) -> Any:
    """A language model as ``CausalLM`` describes it."""
    from paddle import nn

    class Bigram(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.architecture = architecture
            self.embed = nn.Embedding(architecture["vocab_size"], architecture["hidden_size"])
            self.lm_head = nn.Linear(architecture["hidden_size"], architecture["vocab_size"], bias_attr=False)

        def features(self, input_ids: Any, **_: Any) -> Features:
            return Features(self.embed(input_ids))

        def logits(self, hidden: Any) -> Any:
            return self.lm_head(hidden).astype("float32")

        def head(self) -> tuple[Any, bool, None]:
            return self.lm_head.weight, False, None

        def after_step(self, *, rate: float = 0.0) -> None:
            """Nothing that no gradient makes."""

    return Bigram()


class BigramPlugin(ModelPlugin):
    """The five hooks that a model must have."""

    name, summary, model_types = "bigram", "a bigram model", ("bigram",)

    @hookimpl
    def ernie_read_architecture(self, config: ModelConfig) -> Json:
        return {"model_type": "bigram", "vocab_size": 320, "hidden_size": 16, **config.architecture}

    @hookimpl
    def ernie_build_model(self, architecture: Json) -> Any:
        return build(architecture)

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        return Layout((("*", "replicate"),))

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        return Names(architecture["vocab_size"], architecture["hidden_size"])

    @hookimpl
    def ernie_build_tokenizer(self, directory: Path) -> Tokenizer:
        from erniecore_text import SentencePieceTokenizer

        return SentencePieceTokenizer.from_directory(directory, None)


plugin = BigramPlugin()
