"""Models whose layers round their inputs too (FP8, integers): factors that move outliers from inputs to weights, scales of
inputs from calibration data, and what each layer's output loses there. How numbers are rounded is ``erniecore_fp8_qat``.

Factors (SmoothQuant, arXiv:2211.10438, section 4): s = max|x|^a / max|W|^(1-a) for each input; inputs are divided by s, the
weight is multiplied. Layers that read the same inputs (q, k, v; gate, up) share them, so that a norm before could take them in.

Letters: N rows, I inputs, O outputs, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_fp8_qat.convert import MakeRecipe, chosen_recipes, to_packed
from erniecore_fp8_qat.layers import FUSED
from erniecore_fp8_qat.packed import PackedExperts
from erniecore_fp8_qat.scales import InputScale
from erniecore_weight_only.schemes import Rule
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore.api.quantizer import PackedLayer
from erniecore_ptq.observers import observe, replace_layer
from erniecore_ptq.rounding import decibels, signal_and_noise

Batches = Sequence[NDArray[np.int64]]
Factors = dict[str, dict[str, Tensor]]
#: a factor beyond would only show that an input or a weight is nothing
_MOST = 1e4


class AbsMaxObserver:
    """The largest size of each input of one matrix."""

    def __init__(self, width: int) -> None:
        self.sizes = np.zeros(width, np.float32)

    def add(self, x: Tensor) -> None:
        """Update the maxima with rows [N, I]."""
        if x.shape[0]:
            self.sizes = np.maximum(self.sizes, x.detach().astype("float32").abs().max(axis=0).numpy())

    @property
    def finite(self) -> bool:
        """Whether all observed inputs were finite."""
        return bool(np.isfinite(self.sizes).all())


def structure(model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe, smoothing: float) -> nn.Layer:
    """``model`` as codes, every batch with its own input scales, factors 1: what a directory's codes are read into."""
    factors: Factors = {}
    if smoothing:
        layers = dict(model.named_sublayers())
        for name, recipes in chosen_recipes(model, rules, make).items():
            if not isinstance(layers[name], PackedLayer):
                widths = {parameter: getattr(layers[name], parameter).shape[-2] for parameter in recipes}
                factors[name] = {parameter: paddle.ones([width]) for parameter, width in widths.items()}
    return to_packed(model, rules, make, factors)


def calibrated(
    model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe, batches: Batches, *, static: bool, smoothing: float = 0.0
) -> nn.Layer:
    """``model`` as codes; ``static``: each layer's inputs have the largest scale that one of the batches asked for.

    Raises:
        ConfigError: patterns that match nothing. NumericsError: weights or inputs that are not finite.
    """
    model.eval()
    chosen = chosen_recipes(model, rules, make)
    layers = dict(model.named_sublayers(include_self=True))
    before = {name: layers[name] for name in chosen}
    factors = _factors(model, chosen, before, batches, smoothing) if smoothing else {}
    model = to_packed(model, rules, make, factors)
    if static:
        _fix_scales(model, batches)
    _measure(model, before, batches)
    return model


def _factors(
    model: nn.Layer, chosen: Mapping[str, Any], layers: Mapping[str, Any], batches: Batches, alpha: float
) -> Factors:
    stats = observe(model, list(chosen), batches, AbsMaxObserver, whole=True)
    inputs = {
        (name, parameter): np.max([one.sizes for one in stats[name][parameter]], axis=0)
        for name, recipes in chosen.items()
        for parameter in recipes
    }
    weights = {(n, p): _input_sizes(getattr(layers[n], p)) for n, p in inputs}
    found: Factors = {}
    for name, parameter in inputs:
        group = [place for place in _group(name, parameter) if place in inputs]
        size, weight = (np.max([of[place] for place in group], axis=0) for of in (inputs, weights))
        known = (size > 0) & (weight > 0)
        ratio = np.where(known, size, 1.0) ** alpha / np.where(known, weight, 1.0) ** (1 - alpha)
        factor = np.clip(ratio, 1 / _MOST, _MOST).astype(np.float32)
        found.setdefault(name, {})[parameter] = paddle.to_tensor(factor)
    return found


def _input_sizes(weight: Tensor) -> NDArray[np.float32]:
    """[I] of [.., I, O]."""
    sizes: NDArray[np.float32] = np.abs(weight.detach().astype("float32").numpy()).max(axis=-1)
    return sizes if sizes.ndim == 1 else sizes.max(axis=0)


def _group(name: str, parameter: str) -> list[tuple[str, str]]:
    """What reads the same inputs as this weight, itself included."""
    above, _, leaf = name.rpartition(".")
    own = leaf if parameter == "weight" else parameter
    for group in FUSED:
        if own in group:
            return [(f"{above}.{n}", parameter) if parameter == "weight" else (name, n) for n in group]
    return [(name, parameter)]


def _fix_scales(model: nn.Layer, batches: Batches) -> None:
    static = [(name, layer) for name, layer in model.named_sublayers() if isinstance(layer, InputScale)]
    for _, layer in static:
        layer.training = True
    with paddle.no_grad():
        for ids in batches:
            model.features(paddle.to_tensor(ids))
    for name, layer in static:
        if not math.isfinite(layer.step_scale().item()):
            raise NumericsError("the calibration data makes inputs that are not finite", where=name)
        layer.step_done(layer.step_scale().item())
        layer.training = False


class _OutputError(nn.Layer):  # type: ignore[misc]
    """A layer as it was, beside it as codes: it computes what it did, and adds up signal and noise of each output."""

    def __init__(self, before: nn.Layer, after: Any) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.sums = {parameter: np.zeros(2) for parameter in after.packed_shapes()}

    def note(self, parameter: str, y: Tensor, y2: Tensor) -> None:
        """Both outputs [.., O]."""
        self.sums[parameter] += signal_and_noise(y, y2)

    def forward(self, x: Tensor, *routing: Tensor) -> Tensor:
        """As the layer was."""
        if not isinstance(self.after, PackedExperts):
            y = self.before(x)
            self.note("weight", y, self.after(x))
            return y
        return self.experts(x, *routing)

    def experts(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """The same of a stack, matrix by matrix."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.before.gate_proj.shape[0])
        gate_NI, up_NI = (self.qat_matmul(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.qat_matmul("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def qat_matmul(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """[N, I] -> [N, O] through the matrix as it was."""
        y = ops.grouped_linear(x, getattr(self.before, name), routes)
        if name in self.sums:
            self.note(name, y, self.after.matmul(name, x, routes))
        return y


def _measure(model: nn.Layer, before: Mapping[str, nn.Layer], batches: Batches) -> None:
    """``measured`` of each layer, in dB, with the inputs that it had before anything was quantized."""
    layers = dict(model.named_sublayers(include_self=True))
    compared = {name: _OutputError(layer, layers[name]) for name, layer in before.items()}
    for name, layer in compared.items():
        replace_layer(layers, name, layer)
    try:
        with paddle.no_grad():
            for ids in batches:
                model.features(paddle.to_tensor(ids))
    finally:
        for name, layer in compared.items():
            replace_layer(layers, name, layer.after)
    for layer in compared.values():
        layer.after.measured = {parameter: decibels(*sums) for parameter, sums in layer.sums.items()}
