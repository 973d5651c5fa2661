"""Layers that compute with an update beside their weight. They hold the base layer's own parameters under their own
names, so ``q_proj.weight`` stays ``q_proj.weight``; an update is ``q_proj.lora.<adapter>.weight.A``.

The base of such layers, :class:`Adapted`, is also that of other adapters of linear layers (``erniecore_vera``,
``erniecore_oft``), under names of their own in place of ``lora``.

Letters: T tokens, k experts per token, N assignments sorted by expert, H hidden, I width of an expert, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import UsageError, ops
from erniecore.api.adapter import ExpertLayer, PackedLayer, Projection, RankGroup, ShardableWeights
from erniecore.api.decoding import projection_of
from erniecore.api.layers import filled
from erniecore_lora.lowrank import WeightChange
from erniecore_lora.targets import MLP


class Adapted(nn.Layer):  # type: ignore[misc]
    """A layer with any number of updates, one set per adapter, of which one or none is active.

    Attributes:
        inner: the base layer, in a tuple so that its parameters are registered here only.
        active: name of the adapter in use; None: the base alone.
        kept: parameter -> its value before :meth:`merge`; empty when nothing is merged.
        place: name under which the updates are, and thus part of the names of their parameters.
    """

    place: ClassVar[str] = "lora"

    def __init__(self, inner: nn.Layer) -> None:
        super().__init__()
        for name, parameter in inner.named_parameters(include_sublayers=False):
            self.add_parameter(name, parameter)
        for name, buffer in inner.named_buffers(include_sublayers=False):
            self.register_buffer(name, buffer)
        for name, layer in inner.named_children():
            self.add_sublayer(name, layer)
        self.inner = (inner,)
        self.add_sublayer(self.place, nn.LayerDict())
        self.active: str | None = None
        self.kept: dict[str, Tensor] = {}

    @property
    def adapters(self) -> nn.LayerDict:
        """Name of an adapter -> its updates by parameter."""
        return self._sub_layers[self.place]

    def attach(self, adapter: str, parameter: str, change: WeightChange) -> None:
        """Add the update of one parameter to ``adapter``."""
        if adapter not in self.adapters:
            self.adapters[adapter] = nn.LayerDict()
        self.adapters[adapter][parameter] = change

    def updates(self, adapter: str | None) -> Iterator[tuple[str, Any]]:
        """(parameter, update) of an adapter; nothing for None. The updates are of the kind that the class of layer has."""
        if adapter is not None and adapter in self.adapters:
            yield from self.adapters[adapter].items()

    def update(self, parameter: str) -> Any:
        """What changes a parameter in the forward pass now; None: nothing does."""
        return None if self.kept else dict(self.updates(self.active)).get(parameter)

    def packed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter -> shape of those that a quantizer packed."""
        inner = self.inner[0]
        return dict(inner.packed_shapes()) if isinstance(inner, PackedLayer) else {}

    def shard_weight(self, parameter: str, axis: int, group: RankGroup) -> Mapping[str, int]:
        """See ``ShardableWeights``: the base's matter, whose tensors are here under the same names. Updates are told too."""
        for adapter in self.adapters:
            for name, change in self.updates(adapter):
                if name == parameter:
                    change.share(axis, group)
        inner = self.inner[0]
        return inner.shard_weight(parameter, axis, group) if isinstance(inner, ShardableWeights) else {}

    def shape_of(self, parameter: str) -> tuple[int, ...]:
        """Shape of the base weight, [.., I, O]."""
        return self.packed_shapes().get(parameter) or tuple(getattr(self, parameter).shape)

    def dtype_of(self, parameter: str) -> Any:
        """The dtype in which the base computes."""
        return self.inner[0].compute_dtype if parameter in self.packed_shapes() else getattr(self, parameter).dtype

    def value(self, parameter: str) -> Tensor:
        """The base's weight [.., I, O]; of a packed one the numbers, which exist as long as the caller holds them."""
        if parameter in self.packed_shapes():
            return self.inner[0].dequantized(parameter)
        return filled(getattr(self, parameter))

    def projection(self, parameter: str) -> Projection | None:
        """The base with the active update, see ``Projection``; None where the update is more than a product."""
        base, change = projection_of(self.inner[0], parameter), self.update(parameter)
        if base is None or change is None:
            return base
        update = None if len(self.shape_of(parameter)) > 2 else change.product()
        return None if update is None else replace(base, update=update)

    def merge(self) -> None:
        """Put the active update into the weights; again: nothing.

        Raises:
            UsageError: the weights are packed.
        """
        if self.kept:
            return
        packed = [name for name, _ in self.updates(self.active) if name in self.packed_shapes()]
        if packed:
            raise UsageError(
                "an update cannot be put into quantized weights",
                found=packed[0],
                fix="merge into the original model: ernie merge ADAPTER --base MODEL --out DIR",
            )
        for name, low in self.updates(self.active):
            weight = getattr(self, name)
            self.kept[name] = weight.detach().clone()
            with paddle.no_grad():
                weight.set_value(low.merged(weight))

    def unmerge(self) -> None:
        """Restore the weights, bit for bit."""
        for name, value in self.kept.items():
            getattr(self, name).set_value(value)
        self.kept = {}


class LoraLinear(Adapted):
    """y = W x + s B A x; with DoRA y = c (W x + s B A x), c = m / |W + s B A|, and the bias unscaled."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y, low = self.inner[0](x), self.update("weight")
        if low is None:
            return y
        added = low.apply_to(x, paddle.matmul)
        if low.magnitude is None:
            return y + added
        bias = self._parameters.get("bias")
        plain = y if bias is None else y - bias
        gain = low.gain(self.value("weight"))
        return y + (gain - 1) * plain + gain * added


class LoraExperts(Adapted):
    """Stacked experts: gate_proj and up_proj [E, H, I], down_proj [E, I, H]; each with its update or without."""

    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.shape_of(name) for name in MLP}

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        if self.kept or not any(self.updates(self.active)):
            return self.inner[0](x_TH, experts_Tk, weights_Tk)
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.shape_of("gate_proj")[0])
        act_NI = ops.swiglu(self.project("gate_proj", x_NH, routes), self.project("up_proj", x_NH, routes))
        return ops.combine(self.project("down_proj", act_NI, routes), weights_Tk, routes)

    def project(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """Rows sorted by expert, each through its expert's matrix and update."""
        low, matmul = self.update(name), partial(_by_expert, routes)
        packed = name in self.packed_shapes()
        y = self.inner[0].matmul(name, x, routes) if packed else matmul(x, getattr(self, name))
        if low is None:
            return y
        y = y + low.apply_to(x, matmul)
        return y if low.magnitude is None else y * ops.grouped_rows(low.gain(self.value(name)), routes)


def _by_expert(routes: Any, x: Tensor, weight: Tensor) -> Tensor:
    return ops.grouped_linear(x, weight, routes)


def wrapper_of(layer: nn.Layer, parameter: str) -> Callable[[nn.Layer], Adapted] | None:
    """The class that adapts ``parameter`` of ``layer``; None if none does."""
    packed = dict(layer.packed_shapes()) if isinstance(layer, PackedLayer) else {}
    if parameter == "weight":
        return LoraLinear if isinstance(layer, nn.Linear) or parameter in packed else None
    return LoraExperts if isinstance(layer, ExpertLayer) else None
