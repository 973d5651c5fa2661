"""Public checkpoint names of the mixture-of-experts model and ours. numpy only.

Routed experts are stored one by one and stacked in our model. Router weights and selection biases stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from erniecore_ernie45.state import Ernie45StateAdapter, Rules

from erniecore.api.model import TensorMap
from erniecore_ernie45_moe.architecture import MoeArchitecture

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


class Stack(NamedTuple):
    """Experts that are stacked in our model: how its names start here and in files, the number of its first expert
    there, and their width."""

    name: str
    public: str
    first: int
    width: int


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
        yield from self.routing(rules, mlp)
        if arch.num_shared_experts:
            yield from self.mlp(rules, f"{mlp}shared_experts.", arch.num_shared_experts * arch.expert_size)

    def routing(self, rules: Rules, mlp: str) -> Iterator[TensorMap]:
        """Router, selection bias and routed experts of the layer whose MLP's names start with ``mlp``."""
        arch = self.moe
        yield rules.matrix(f"{mlp}gate.weight", arch.hidden_size, arch.num_experts, "float32")
        statistics = rules.same(f"{mlp}moe_statics.e_score_correction_bias", (1, arch.num_experts), "float32")
        yield replace(statistics, trained=False)
        yield from self.experts(rules, Stack(f"{mlp}experts.", f"{mlp}experts.", 0, arch.expert_size))

    def experts(self, rules: Rules, stack: Stack) -> Iterator[TensorMap]:
        """One stack of experts."""
        hidden, width = self.moe.hidden_size, stack.width
        if rules.torch_order:
            for part, shape in (
                ("gate_proj", (hidden, width)),
                ("up_proj", (hidden, width)),
                ("down_proj", (width, hidden)),
            ):
                yield self._stacked(rules, stack, part, part, shape, shape[::-1], _turned, _turned_back)
            return
        for part, start in (("gate_proj", 0), ("up_proj", width)):
            take, fused = _columns(start, start + width), (hidden, 2 * width)
            yield self._stacked(rules, stack, part, "up_gate_proj", (hidden, width), fused, take, None)
        yield self._stacked(rules, stack, "down_proj", "down_proj", (width, hidden), (width, hidden), _as_is, None)

    def _stacked(
        self,
        rules: Rules,
        to: Stack,
        part: str,
        public: str,
        shape: tuple[int, int],
        source_shape: tuple[int, ...],
        load: Callable[[Array], Array],
        store: Callable[[Array], Array] | None,
    ) -> TensorMap:
        """One matrix of all experts; ``load`` converts the stack, ``store`` that of a single expert."""
        count = self.moe.num_experts

        def stack(arrays: Sequence[Array]) -> Array:
            return load(np.stack(arrays))

        def split(array: Array) -> Sequence[Array]:
            return [np.ascontiguousarray(store(expert)) for expert in array] if store else []

        numbers = range(to.first, to.first + count)
        sources = tuple(rules.public(f"{to.public}{number}.{public}.weight") for number in numbers)
        shapes = (source_shape,) * count
        share = self.moe.num_selected / count
        write = split if store else None
        return TensorMap(
            to.name + part, (count, *shape), sources, shapes, stack, write, active_share=share, stacked=True
        )


def _as_is(array: Array) -> Array:
    return array


def _turned(array: Array) -> Array:
    turned: Array = array.swapaxes(-1, -2)
    return turned


_turned_back = _turned


def _columns(start: int, stop: int) -> Callable[[Array], Array]:
    def take(array: Array) -> Array:
        columns: Array = array[..., start:stop]
        return columns

    return take
