"""Public checkpoint names <-> ours: the same names, with matrices stored [out, in]. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from erniecore.api import CheckpointError, Json
from erniecore.api.model import TensorMap


class AcmeLmStateAdapter:
    """Maps the names of checkpoints; an ``erniecore.api.model.StateAdapter``."""

    def __init__(self, architecture: Json) -> None:
        self.architecture = architecture

    def layout_of(self, names: Sequence[str]) -> str:
        """There is one layout; raises ``CheckpointError`` for the names of another model."""
        if "embed_tokens.weight" not in names:
            raise CheckpointError("not a checkpoint of acme-lm", expected="embed_tokens.weight")
        return "pt"

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """One map per parameter."""
        if layout != "pt":
            raise CheckpointError("unknown layout", found=layout, expected="pt")
        V, H = self.architecture["vocab_size"], self.architecture["hidden_size"]
        outer = [same("embed_tokens.weight", V, H), same("norm.weight", H), matrix("lm_head.weight", H, V)]
        return [*outer, *self._layers(H, self.architecture["intermediate_size"])]

    def ignored(self, name: str) -> bool:
        """No tensor of a checkpoint is ignored."""
        return False

    def _layers(self, H: int, inner: int) -> Iterator[TensorMap]:
        for index in range(self.architecture["num_hidden_layers"]):
            layer = f"layers.{index}."
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                yield matrix(f"{layer}self_attn.{part}.weight", H, H)
            for part in ("gate_proj", "up_proj"):
                yield matrix(f"{layer}mlp.{part}.weight", H, inner)
            yield matrix(f"{layer}mlp.down_proj.weight", inner, H)
            yield same(f"{layer}input_layernorm.weight", H)
            yield same(f"{layer}post_attention_layernorm.weight", H)


def same(name: str, *shape: int) -> TensorMap:
    """Stored as it is."""
    return TensorMap(name, shape, (name,), (shape,), first, as_list)


def matrix(name: str, num_in: int, num_out: int) -> TensorMap:
    """The map of a matrix that is stored transposed."""
    return TensorMap(name, (num_in, num_out), (name,), ((num_out, num_in),), first_transposed, as_transposed)


def first(arrays: Sequence[Any]) -> Any:
    """The first and only array."""
    return arrays[0]


def first_transposed(arrays: Sequence[Any]) -> Any:
    """The only array, transposed."""
    return arrays[0].T.copy()


def as_list(ours: Any) -> Sequence[Any]:
    """As the only array."""
    return [ours]


def as_transposed(ours: Any) -> Sequence[Any]:
    """Transposed as the only array."""
    return [ours.T.copy()]
