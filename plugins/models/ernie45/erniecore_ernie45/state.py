"""Public checkpoint names of the dense model and ours. numpy only.

Two layouts are known. ``pt`` (read and written): names of the '-PT' checkpoints, matrices [out, in]. ``paddle`` (read):
prefix ``ernie.``, matrices [in, out], queries, keys and values fused as contiguous [Q | K | V], gate and up fused as
[gate | up]. Which one a checkpoint has is decided once, by its names: a square matrix looks alike in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from erniecore.api import CheckpointError
from erniecore.api.model import TensorMap
from erniecore_ernie45.architecture import Architecture

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

Shape: TypeAlias = tuple[int, ...]


class Ernie45StateAdapter:
    """Implements ``erniecore.api.StateAdapter`` for the dense model."""

    layouts = ("pt", "paddle")

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch

    def layout_of(self, names: Sequence[str]) -> str:
        """Raises ``CheckpointError`` when the names are of neither layout."""
        if any(name.startswith("ernie.") or "qkv_proj" in name or "up_gate_proj" in name for name in names):
            return "paddle"
        if "model.embed_tokens.weight" in names:
            return "pt"
        found = ", ".join(sorted(names)[:3])
        raise CheckpointError("not an ERNIE 4.5 checkpoint", found=found, expected="model.embed_tokens.weight")

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """Raises ``CheckpointError`` when the head that ``names`` hold contradicts ``tie_word_embeddings``."""
        if layout not in self.layouts:
            raise CheckpointError("unknown layout", found=layout, expected=" or ".join(self.layouts))
        prefix = "model." if layout == "pt" or (names and not _has_prefix(names)) else "ernie."
        rules = Rules(layout, prefix, reading=bool(names))
        return [*self.outside(rules, names), *self.inside(rules), *self.gates(rules, names)]

    def ignored(self, name: str) -> bool:
        """Multi-token-prediction weights: the dense model has no use for them."""
        return "mtp" in name

    def outside(self, rules: Rules, names: Sequence[str]) -> Iterator[TensorMap]:
        """Embedding, final norm and head."""
        arch, untied = self.arch, "lm_head.weight" in names
        table = (arch.vocab_size, arch.hidden_size)
        if arch.tie_word_embeddings:
            yield rules.tied_embedding(table) if untied else rules.same("model.embed_tokens.weight", table)
        else:
            if names and not untied:
                fix = "a head that shares the embedding needs tie_word_embeddings true in config.json"
                raise CheckpointError(
                    "tie_word_embeddings is false, but the head is missing", where="lm_head.weight", fix=fix
                )
            yield rules.same("model.embed_tokens.weight", table)
            yield rules.matrix("lm_head.weight", arch.hidden_size, arch.vocab_size)
        if arch.head_bias:
            yield rules.same("lm_head.bias", (arch.vocab_size,))
        yield rules.same("model.norm.weight", (arch.hidden_size,))

    def gates(self, rules: Rules, names: Sequence[str]) -> Iterator[TensorMap]:
        """The gates of a model with GPAS; 0 where ``names`` has none, so that the model computes what it did."""
        for index in range(self.arch.num_hidden_layers) if self.arch.gpas else ():
            layer = f"model.layers.{index}."
            gate = rules.same(f"{layer}residual.gate", (1,), "float32")
            if names and gate.sources[0] not in names:
                norm = rules.public(f"{layer}input_layernorm.weight")
                gate = TensorMap(gate.name, (1,), (norm,), ((self.arch.hidden_size,),), _zero, None, "float32")
            yield gate

    def inside(self, rules: Rules) -> Iterator[TensorMap]:
        """Tensor maps of all decoder layers."""
        for index in range(self.arch.num_hidden_layers):
            yield from self.layer(rules, f"model.layers.{index}.")

    def layer(self, rules: Rules, name: str) -> Iterator[TensorMap]:
        """One dense decoder layer whose names start with ``name``."""
        yield from self.attention(rules, name)
        yield from self.mlp(rules, f"{name}mlp.", self.arch.intermediate_size)

    def attention(self, rules: Rules, name: str) -> Iterator[TensorMap]:
        """The attention block and the two norms."""
        arch = self.arch
        heads, shared = arch.num_attention_heads * arch.head_dim, arch.num_key_value_heads * arch.head_dim
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield rules.same(f"{name}{norm}.weight", (arch.hidden_size,))
        parts = {"q_proj": heads, "k_proj": shared, "v_proj": shared}
        yield from rules.fused(f"{name}self_attn.", "qkv_proj", parts, arch.hidden_size, arch.use_bias)
        yield from rules.linear(f"{name}self_attn.o_proj", heads, arch.hidden_size, arch.use_bias)

    def mlp(self, rules: Rules, name: str, width: int) -> Iterator[TensorMap]:
        """Tensor maps of one SwiGLU MLP."""
        arch = self.arch
        parts = {"gate_proj": width, "up_proj": width}
        yield from rules.fused(name, "up_gate_proj", parts, arch.hidden_size, arch.use_bias)
        yield from rules.linear(f"{name}down_proj", width, arch.hidden_size, arch.use_bias)


class Rules:
    """Builds the maps of one layout: the only place that knows what ``pt`` and ``paddle`` do differently."""

    def __init__(self, layout: str, prefix: str, *, reading: bool) -> None:
        self.torch_order = layout == "pt"
        self.prefix, self.reading = prefix, reading

    def public(self, name: str) -> str:
        """Our name in the checkpoint."""
        return self.prefix + name[len("model.") :] if name.startswith("model.") else name

    def same(self, name: str, shape: Shape, dtype: str = "") -> TensorMap:
        """A tensor that is stored as it is."""
        return TensorMap(name, shape, (self.public(name),), (shape,), _first, _alone, dtype)

    def matrix(self, name: str, num_in: int, num_out: int, dtype: str = "") -> TensorMap:
        """A weight [in, out] of ours, [out, in] in ``pt``."""
        if not self.torch_order:
            return self.same(name, (num_in, num_out), dtype)
        source, shape = (self.public(name),), (num_in, num_out)
        return TensorMap(name, shape, source, ((num_out, num_in),), _turned, _turned_back, dtype)

    def either_way(self, name: str, num_in: int, num_out: int) -> TensorMap:
        """A weight that some ``pt`` files hold turned: when read, its shape tells. The two sizes must differ."""
        if not (self.torch_order and self.reading):
            return self.matrix(name, num_in, num_out)
        assert num_in != num_out
        load = _turned_if_needed((num_in, num_out), self.public(name))
        return TensorMap(name, (num_in, num_out), (self.public(name),), ((-1, -1),), load, None)

    def linear(self, name: str, num_in: int, num_out: int, bias: bool) -> Iterator[TensorMap]:
        """A projection: weight and, if it has one, bias."""
        yield self.matrix(f"{name}.weight", num_in, num_out)
        if bias:
            yield self.same(f"{name}.bias", (num_out,))

    def fused(self, name: str, fused: str, parts: dict[str, int], num_in: int, bias: bool) -> Iterator[TensorMap]:
        """Projections of one input that ``paddle`` stores side by side as ``fused``."""
        total, start = sum(parts.values()), 0
        for part, width in parts.items():
            if self.torch_order:
                yield from self.linear(name + part, num_in, width, bias)
                continue
            take = _columns(start, start + width)
            source = self.public(f"{name}{fused}.weight")
            yield TensorMap(f"{name}{part}.weight", (num_in, width), (source,), ((num_in, total),), take, None)
            if bias:
                source = self.public(f"{name}{fused}.bias")
                yield TensorMap(f"{name}{part}.bias", (width,), (source,), ((total,),), take, None)
            start += width

    def tied_embedding(self, shape: Shape) -> TensorMap:
        """The embedding of a checkpoint that also holds the head: both must be the same numbers."""
        name = "model.embed_tokens.weight"
        return TensorMap(name, shape, (self.public(name), "lm_head.weight"), (shape, shape), _agreed, None)


def _has_prefix(names: Sequence[str]) -> bool:
    return any(name.startswith("ernie.") for name in names)


def _first(arrays: Sequence[Array]) -> Array:
    return arrays[0]


def _zero(arrays: Sequence[Array]) -> Array:
    return np.zeros(1, arrays[0].dtype)


def _alone(array: Array) -> Sequence[Array]:
    return (array,)


def _turned(arrays: Sequence[Array]) -> Array:
    turned: Array = arrays[0].T  # a view: the loader moves each value once
    return turned


def _turned_back(array: Array) -> Sequence[Array]:
    return (np.ascontiguousarray(array.T),)


def _turned_if_needed(shape: Shape, where: str) -> Callable[[Sequence[Array]], Array]:
    def load(arrays: Sequence[Array]) -> Array:
        if arrays[0].shape not in (shape, shape[::-1]):
            expected = f"{list(shape[::-1])} or {list(shape)}"
            raise CheckpointError("wrong shape", where=where, found=str(list(arrays[0].shape)), expected=expected)
        return arrays[0] if arrays[0].shape == shape else _turned(arrays)

    return load


def _columns(start: int, stop: int) -> Callable[[Sequence[Array]], Array]:
    """Slices the last axis: columns of a weight, entries of a bias."""

    def take(arrays: Sequence[Array]) -> Array:
        columns: Array = arrays[0][..., start:stop]
        return columns

    return take


def _agreed(arrays: Sequence[Array]) -> Array:
    embedding, head = arrays
    if not np.array_equal(embedding, head):
        message = "tie_word_embeddings is true, but the head differs from the embedding"
        fix = "set tie_word_embeddings to false in config.json, or remove lm_head.weight from the checkpoint"
        raise CheckpointError(message, where="lm_head.weight", fix=fix)
    return embedding
