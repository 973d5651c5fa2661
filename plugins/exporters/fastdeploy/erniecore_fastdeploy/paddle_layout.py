"""Tensors of a model under the names of the Paddle layout (``ernie.``, matrices [in, out], ``qkv_proj`` and ``up_gate_proj``
fused), made from those of the Hugging Face format; and the weights of quantized models, by name. Reading the layout is the model
plugin's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.api import UsageError
from erniecore.api.export import ModelBundle, StoredLayer, StoredWeight
from erniecore.api.model_files import Array, StoredTensor, public_tensors, state_of
from erniecore.api.parallel import PackedLayer

if TYPE_CHECKING:
    from paddle import Tensor as PaddleTensor

#: part -> the fused matrix that it is in, and its place there
_FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2),
          "gate_proj": ("up_gate_proj", 0), "up_proj": ("up_gate_proj", 1)}  # fmt: skip
#: matrices that both layouts store alike
_SAME = re.compile(r".*(embed_tokens\.weight|e_score_correction_bias)")
#: the same of models with experts for vision, whose routers are [hidden, experts] everywhere
_SAME_ROUTERS = re.compile(rf"{_SAME.pattern}|.*\.mlp\.gate\.weight(_1)?")


class Packed(NamedTuple):
    """A quantized parameter: its layer, what is stored, and its public names: one, or one per expert."""

    layer: PackedLayer
    parameter: str
    stored: StoredWeight
    public: tuple[str, ...]

    def dequantize(self) -> PaddleTensor:
        """The dequantized weight, [.., in, out]."""
        return self.layer.dequantized(self.parameter)

    @property
    def modules(self) -> tuple[str, ...]:
        """Where they are in the Paddle layout."""
        return tuple(place(name)[0] for name in self.public)


def packed_of(bundle: ModelBundle) -> dict[str, Packed]:
    """Parameter of ours -> its packed form. Raises ``UsageError`` for a quantizer that does not say what it stores."""
    public = {entry.name: tuple(entry.sources) for entry in bundle.adapter.maps("pt")}
    found = {}
    for above, layer in bundle.model.named_sublayers():
        if not isinstance(layer, PackedLayer):
            continue
        packed: PackedLayer = layer
        for parameter in packed.packed_shapes():
            name = f"{above}.{parameter}"
            if not isinstance(layer, StoredLayer):
                raise UsageError("this quantizer does not say what it stores", where=name, found=type(layer).__name__)
            found[name] = Packed(packed, parameter, layer.stored(parameter), public[name])
    return found


class _Numbers(Mapping[str, Any]):
    """The model's tensors as if it were not quantized: weights are dequantized on access."""

    def __init__(self, bundle: ModelBundle) -> None:
        self.packed = packed_of(bundle)
        layers = [name for name, layer in bundle.model.named_sublayers() if isinstance(layer, PackedLayer)]
        layers.append("cache_codec")
        own = {name for name, _ in bundle.model.named_parameters()}
        self.state = {
            name: tensor
            for name, tensor in state_of(bundle.model).items()
            if name in own or not any(name.startswith(f"{layer}.") for layer in layers)
        }

    def __getitem__(self, name: str) -> Any:
        return self.packed[name].dequantize() if name in self.packed else self.state[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.state
        yield from self.packed

    def __len__(self) -> int:
        return len(self.state) + len(self.packed)


def public_dequantized(bundle: ModelBundle, dtype: str) -> dict[str, StoredTensor]:
    """``public_tensors`` of a quantized model: the dequantized weights in the Hugging Face format."""
    return public_tensors(bundle, dtype, _Numbers(bundle))


def place(public: str) -> tuple[str, int]:
    """Module of the Paddle layout, and the place in a fused matrix, of a public name of a weight."""
    above, _, leaf = public.removesuffix(".weight").rpartition(".")
    leaf, index = _FUSED.get(leaf, (leaf, 0))
    module = f"{above}.{leaf}" if above else leaf
    return ("ernie." + module.removeprefix("model.") if module.startswith("model.") else module), index


def paddle_tensors(public: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The same tensors in the Paddle layout.

    Raises:
        UsageError: biases of fused matrices, and layers for multi-token prediction: their names are not known.
    """
    groups: dict[str, list[tuple[int, StoredTensor]]] = {}
    for name, tensor in public.items():
        if ".mtp_" in name or (name.endswith(".bias") and "_proj" in name):
            raise UsageError("what FastDeploy calls this tensor in the Paddle layout is not known", where=name)
        module, index = place(name) if name.endswith(".weight") else (place(name)[0], 0)
        key = f"{module}.weight" if name.endswith(".weight") else module
        groups.setdefault(key, []).append((index, tensor))
    same = _SAME_ROUTERS if any(name.endswith(".gate.weight_1") for name in public) else _SAME
    return {
        key: _joined([tensor for _, tensor in sorted(parts, key=lambda p: p[0])], bool(same.fullmatch(key)))
        for key, parts in groups.items()
    }


def _joined(parts: list[StoredTensor], same: bool) -> StoredTensor:
    """One tensor, transposed to [in, out] where it is a matrix that layouts store differently, or several side by side."""
    first = parts[0]
    if len(first.shape) != 2 or same:
        return first
    shape = (first.shape[1], sum(part.shape[0] for part in parts))
    return StoredTensor(first.dtype, shape, partial(_side_by_side, parts))


def _side_by_side(parts: list[StoredTensor]) -> Array:
    return np.ascontiguousarray(np.concatenate([part.load().T for part in parts], axis=1))
