"""What the toy adapter and quantizer do to a model. Imported inside hooks only.

Letters: I inputs, O outputs, R rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
from paddle import nn  # noqa: TID253
from paddle.nn import functional as F  # noqa: TID253

if TYPE_CHECKING:
    from erniecore.api.testing import Layer, Tensor


class LowRank(nn.Layer):  # type: ignore[misc]
    """A frozen linear layer plus x @ A_IR @ B_RO."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        inputs, outputs = base.weight.shape
        self.A_IR = self.create_parameter([inputs, rank])
        self.B_RO = self.create_parameter([rank, outputs], default_initializer=nn.initializer.Constant(0.0))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        out = self.base(x)
        return out if self.kept is not None else out + x @ self.A_IR @ self.B_RO

    def merge(self) -> None:
        """Add the product to the weight; remember the weight."""
        if self.kept is None:
            self.kept = self.base.weight.clone()
            self.base.weight.set_value(self.kept + self.A_IR @ self.B_RO)

    def unmerge(self) -> None:
        """Put the weight back."""
        if self.kept is not None:
            self.base.weight.set_value(self.kept)
            self.kept = None


def add_low_rank(model: Layer, rank: int) -> Layer:
    """Freeze everything and wrap the query projections."""
    for parameter in model.parameters():
        parameter.stop_gradient = True
    for layer in model.sublayers():
        if hasattr(layer, "q_proj"):
            layer.q_proj = LowRank(layer.q_proj, rank)
    wrapped = [layer for layer in model.sublayers() if isinstance(layer, LowRank)]
    model.merge = partial(_each, wrapped, LowRank.merge)
    model.unmerge = partial(_each, wrapped, LowRank.unmerge)
    return model


def _each(layers: Sequence[LowRank], action: Callable[[LowRank], None]) -> None:
    for layer in layers:
        action(layer)


def rounded(weight_IO: Tensor) -> Tensor:
    """The nearest of 255 levels per column; a column of zeros stays zero, NaN stays NaN."""
    scale = weight_IO.abs().max(axis=0, keepdim=True).clip(min=1e-12) / 127
    return paddle.round(weight_IO / scale) * scale


class RoundedLinear(nn.Layer):  # type: ignore[misc]
    """Computes with rounded weights; the gradient passes straight through to the exact ones."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return F.linear(x, self.weight + (rounded(self.weight) - self.weight).detach(), self.bias)


def fake_quantize(model: Layer) -> Layer:
    """Replace every linear layer but the head."""
    for layer in model.sublayers():
        for name, child in list(layer.named_children()):
            if isinstance(child, nn.Linear):
                setattr(layer, name, RoundedLinear(child))
    return model


def round_weights(model: Layer) -> Layer:
    """Round the weights of every linear layer but the head, in place."""
    for layer in model.sublayers():
        for child in layer.children():
            if isinstance(child, nn.Linear | RoundedLinear):
                with paddle.no_grad():
                    child.weight.set_value(rounded(child.weight))
    return model
