"""How a decoder layer adds to the residual stream, and how it scales what it reads from it.

GPAS (arXiv:2506.22049) scales the stream down after each addition, with one learned gate a per layer for both of its halves:

    x' = x − SiLU(a) · stop_gradient(x)

so the stream no longer grows with depth while its gradient passes unchanged. a = 0 at the start: the layer computes what it did.
LayerNorm scaling (arXiv:2502.05795) multiplies the output of the norms of layer l (1-based) by 1 / sqrt(l).

config.json says which of them a model has, because it computes something else without: ``gpas`` and ``layer_norm_scaling``.
Letters: B batch, S positions, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore.api.layers import child
from erniecore_ernie45.architecture import Architecture

#: end of the names of gates; the only parameters that GPAS adds
GATE = "residual.gate"


class RMSNorm(nn.Layer):  # type: ignore[misc]
    """w * x / sqrt(mean(x^2) + epsilon), statistics in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        ones = nn.initializer.Constant(1.0)
        self.weight = self.create_parameter([size], dtype=paddle.get_default_dtype(), default_initializer=ones)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> the same shape and dtype."""
        return ops.rms_norm(x, self.weight, self.epsilon)


class ScaledRMSNorm(RMSNorm):
    """An RMSNorm whose output is multiplied by ``factor``."""

    def __init__(self, size: int, epsilon: float, factor: float) -> None:
        super().__init__(size, epsilon)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> the same shape and dtype."""
        return super().forward(x) * self.factor


class Residual(nn.Layer):  # type: ignore[misc]
    """Adds what a block gives to the residual stream, unscaled."""

    def forward(self, x_BSH: Tensor, y_BSH: Tensor) -> Tensor:
        """The stream after a block has added to it."""
        return x_BSH + y_BSH


class GatedResidual(Residual):
    """The addition, then GPAS. ``gate``: float32 [1] whatever the model's dtype; ``straight_through``: the gradient of the
    stream passes unchanged."""

    def __init__(self, *, straight_through: bool) -> None:
        super().__init__()
        self.straight_through = straight_through
        zero = nn.initializer.Constant(0.0)
        self.gate = self.create_parameter([1], dtype="float32", default_initializer=zero)

    def forward(self, x_BSH: Tensor, y_BSH: Tensor) -> Tensor:
        """The stream after a block has added to it."""
        return scale_residual(x_BSH + y_BSH, self.gate, straight_through=self.straight_through)


def scale_residual(x: Tensor, gate: Tensor, *, straight_through: bool = True) -> Tensor:
    """x − SiLU(gate) · x. With ``straight_through`` the second x is a constant: the gradient g of the result is that of x, bit
    for bit, and the gate's is −SiLU′(gate) · ⟨g, x⟩."""
    return x - F.silu(gate).astype(x.dtype) * (x.detach() if straight_through else x)


def make_residual(arch: Architecture, index: int) -> Residual:
    """Of layer ``index``; layers behind the last one (multi-token prediction) only add."""
    if arch.gpas and index < arch.num_hidden_layers:
        return GatedResidual(straight_through=arch.gpas == "straight-through")
    return Residual()


def make_norm(arch: Architecture, index: int) -> RMSNorm:
    """A norm of layer ``index``; layers behind the last one have plain ones."""
    if arch.layer_norm_scaling and index < arch.num_hidden_layers:
        return ScaledRMSNorm(arch.hidden_size, arch.rms_norm_eps, 1.0 / math.sqrt(index + 1))
    return RMSNorm(arch.hidden_size, arch.rms_norm_eps)


def gates(model: nn.Layer) -> Iterator[tuple[str, Tensor]]:
    """Name and gate of every layer that is here."""
    return ((name, parameter) for name, parameter in model.named_parameters() if name.endswith(GATE))


def clip_gates(gradients: Mapping[str, Tensor], limit: float) -> None:
    """Clip the gradient of each gate to [−limit, limit] in place; 0: leave them. Elementwise, so every layout of ranks clips
    what one process does."""
    if limit > 0:
        with paddle.no_grad():
            for name, gradient in gradients.items():
                if name.endswith(GATE) and gradient.size:
                    gradient.clip_(-limit, limit)


def gate_metrics(model: nn.Layer) -> dict[str, float]:
    """The smallest and the mean factor 1 − SiLU(gate) of the layers that are here; nothing without gates.

    Waits for the device once."""
    found = [gate for _, gate in gates(model)]
    if not found:
        return {}
    with paddle.no_grad():
        factors = (1.0 - F.silu(paddle.concat([gate.flatten() for gate in found]))).numpy()
    return {"gpas/min_scale": float(factors.min()), "gpas/mean_scale": float(factors.mean())}


def fold(layers: Any) -> str:
    """Makes plain layers of these, whose weights compute the same: returns why that cannot be, or ``""``.

    With x = s · y for the product s of all factors so far, RMSNorm reads y as it reads x (but for its epsilon), and what a block
    adds to y is what it adds to x divided by s: so each output projection is divided by the s before its addition. The factors of
    scaled norms go into their weights.
    """
    scales = [1.0]
    for layer in layers:
        if isinstance(layer.residual, GatedResidual):
            factor = 1.0 - float(F.silu(layer.residual.gate).sum())
            if factor <= 0.01:
                return f"a layer multiplies the stream by {factor:.3g}: nothing is left of the layers before it"
            scales += [scales[-1] * factor, scales[-1] * factor * factor]
    with paddle.no_grad():
        for index, layer in enumerate(layers):
            if isinstance(layer.residual, GatedResidual):
                _divide(layer.self_attn, "o_proj", scales[2 * index])
                _divide(layer.mlp, "down_proj", scales[2 * index + 1])
                layer.residual = Residual()
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm = child(layer, name)
                if isinstance(norm, ScaledRMSNorm):
                    norm.weight.set_value(norm.weight * norm.factor)
                    plain = RMSNorm(int(norm.weight.shape[0]), norm.epsilon)
                    plain.weight.set_value(norm.weight)
                    layer.add_sublayer(name, plain)
    return ""


def _divide(block: nn.Layer, projection: str, scale: float) -> None:
    """All output projections inside a block: weights, biases and stacks of experts."""
    for name, parameter in block.named_parameters():
        if projection in name.split("."):
            parameter.set_value(parameter / scale)
