"""Public checkpoint names of the mixture-of-experts model and ours. numpy only.

Routed experts are stored one by one and stacked in our model. Router weights and selection biases stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from erniecore_ernie45.state import Ernie45StateAdapter, Rules

from erniecore.api import TensorMap
from erniecore_ernie45_moe.architecture import MoeArchitecture

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


class Ernie45MoeStateAdapter(Ernie45StateAdapter):
    """Implements ``erniecore.api.StateAdapter``; ``arch`` says whether multi-token prediction is on."""

    def __init__(self, arch: MoeArchitecture) -> None:
        super().__init__(arch)
        self.moe = arch

    def ignored(self, name: str) -> bool:
        """Multi-token-prediction weights of a model that is built without those layers."""
        return "mtp" in name and not self.moe.num_mtp_layers

    def inside(self, rules: Rules) -> Iterator[TensorMap]:
        """Layers, then prediction layers."""
        for index in range(self.moe.num_hidden_layers):
            yield from self._layer(rules, f"model.layers.{index}.", index)
        size = self.moe.hidden_size
        for depth in range(self.moe.num_mtp_layers):
            yield from self._layer(rules, f"model.mtp_block.{depth}.", 0)
            yield rules.same(f"model.mtp_emb_norm.{depth}.weight", (size,))
            yield rules.same(f"model.mtp_hidden_norm.{depth}.weight", (size,))
            yield rules.either_way(f"model.mtp_linear_proj.{depth}.weight", 2 * size, size)
            if self.moe.use_bias:
                yield rules.same(f"model.mtp_linear_proj.{depth}.bias", (size,))

    def _layer(self, rules: Rules, name: str, index: int) -> Iterator[TensorMap]:
        if not self.moe.is_moe(index):
            yield from self.layer(rules, name)
            return
        arch, mlp = self.moe, f"{name}mlp."
        yield from self.attention(rules, name)
        yield rules.matrix(f"{mlp}gate.weight", arch.hidden_size, arch.num_experts, "float32")
        statistics = rules.same(f"{mlp}moe_statics.e_score_correction_bias", (1, arch.num_experts), "float32")
        yield replace(statistics, trained=False)
        yield from self._experts(rules, f"{mlp}experts.")
        if arch.num_shared_experts:
            yield from self.mlp(rules, f"{mlp}shared_experts.", arch.num_shared_experts * arch.expert_size)

    def _experts(self, rules: Rules, name: str) -> Iterator[TensorMap]:
        hidden, width = self.moe.hidden_size, self.moe.expert_size
        if rules.torch_order:
            for part, shape in (
                ("gate_proj", (hidden, width)),
                ("up_proj", (hidden, width)),
                ("down_proj", (width, hidden)),
            ):
                yield self._stacked(rules, name, part, part, shape, shape[::-1], _turned, _turned_back)
            return
        for part, start in (("gate_proj", 0), ("up_proj", width)):
            take, fused = _columns(start, start + width), (hidden, 2 * width)
            yield self._stacked(rules, name, part, "up_gate_proj", (hidden, width), fused, take, None)
        yield self._stacked(rules, name, "down_proj", "down_proj", (width, hidden), (width, hidden), _as_is, None)

    def _stacked(
        self,
        rules: Rules,
        name: str,
        part: str,
        public: str,
        shape: tuple[int, int],
        source_shape: tuple[int, ...],
        load: Callable[[Array], Array],
        store: Callable[[Array], Array] | None,
    ) -> TensorMap:
        """One matrix of all experts; ``load`` and ``store`` convert that of a single expert."""
        count = self.moe.num_experts

        def stack(arrays: Sequence[Array]) -> Array:
            return np.stack([load(array) for array in arrays])

        def split(array: Array) -> Sequence[Array]:
            return [np.ascontiguousarray(store(expert)) for expert in array] if store else []

        sources = tuple(rules.public(f"{name}{expert}.{public}.weight") for expert in range(count))
        shapes = (source_shape,) * count
        share = self.moe.num_selected / count
        write = split if store else None
        return TensorMap(name + part, (count, *shape), sources, shapes, stack, write, active_share=share)


def _as_is(array: Array) -> Array:
    return array


def _turned(array: Array) -> Array:
    turned: Array = array.T
    return turned


_turned_back = _turned


def _columns(start: int, stop: int) -> Callable[[Array], Array]:
    def take(array: Array) -> Array:
        columns: Array = array[:, start:stop]
        return columns

    return take
