"""Layers that compute with an update beside their weight. They hold the base layer's own parameters under their own
names, so ``q_proj.weight`` stays ``q_proj.weight``; an update is ``q_proj.lora.<adapter>.weight.A``.

Letters: T tokens, k experts per token, N assignments sorted by expert, H hidden, I width of an expert, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore_lora.lowrank import LowRank


class Adapted(nn.Layer):  # type: ignore[misc]
    """A layer with any number of updates, one set per adapter, of which one or none is active.

    Attributes:
        inner: the base layer, in a tuple so that its parameters are registered here only.
        active: name of the adapter in use; None: the base alone.
        kept: parameter -> its value before :meth:`merge`; empty when nothing is merged.
    """

    def __init__(self, inner: nn.Layer) -> None:
        super().__init__()
        for name, parameter in inner.named_parameters(include_sublayers=False):
            self.add_parameter(name, parameter)
        self.inner = (inner,)
        self.lora = nn.LayerDict()
        self.active: str | None = None
        self.kept: dict[str, Tensor] = {}

    def attach(self, adapter: str, parameter: str, low: LowRank) -> None:
        """Add the update of one parameter to ``adapter``."""
        if adapter not in self.lora:
            self.lora[adapter] = nn.LayerDict()
        self.lora[adapter][parameter] = low

    def updates(self, adapter: str | None) -> Iterator[tuple[str, LowRank]]:
        """(parameter, update) of an adapter; nothing for None."""
        if adapter is not None and adapter in self.lora:
            yield from self.lora[adapter].items()

    def update(self, parameter: str) -> LowRank | None:
        """What the forward pass adds to a parameter now."""
        return None if self.kept else dict(self.updates(self.active)).get(parameter)

    def merge(self) -> None:
        """Put the active update into the weights; again: nothing."""
        if self.kept:
            return
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
        bias = getattr(self, "bias", None)
        plain = y if bias is None else y - bias
        gain = low.gain(self.weight)
        return y + (gain - 1) * plain + gain * added


class LoraExperts(Adapted):
    """Stacked experts: gate_proj and up_proj [E, H, I], down_proj [E, I, H]; each with its update or without."""

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Weighted sum [T, H] of the selected experts' outputs."""
        if self.kept or not any(self.updates(self.active)):
            return self.inner[0](x_TH, experts_Tk, weights_Tk)
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.gate_proj.shape[0])
        act_NI = ops.swiglu(self.project("gate_proj", x_NH, routes), self.project("up_proj", x_NH, routes))
        return ops.combine(self.project("down_proj", act_NI, routes), weights_Tk, routes)

    def project(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """Rows sorted by expert, each through its expert's matrix and update."""
        weight, low = getattr(self, name), self.update(name)
        multiply = partial(_by_expert, routes)
        y = multiply(x, weight)
        if low is None:
            return y
        y = y + low.apply_to(x, multiply)
        return y if low.magnitude is None else y * ops.grouped_rows(low.gain(weight), routes)


def _by_expert(routes: Any, x: Tensor, weight: Tensor) -> Tensor:
    return ops.grouped_linear(x, weight, routes)


def wrapper_of(layer: nn.Layer, parameter: str) -> Callable[[nn.Layer], Adapted] | None:
    """The class that adapts ``parameter`` of ``layer``; None if none does."""
    if parameter == "weight":
        return LoraLinear if isinstance(layer, nn.Linear) else None
    stacked = all(getattr(getattr(layer, name, None), "ndim", 0) == 3 for name in ("gate_proj", "up_proj", "down_proj"))
    return LoraExperts if stacked else None
