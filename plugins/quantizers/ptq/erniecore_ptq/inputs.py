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
from erniecore_fp8_qat.convert import MakeRecipe, chosen_recipes, fused_partners, packed_layer, to_packed
from erniecore_fp8_qat.layers import FUSED
from erniecore_fp8_qat.packed import PackedExperts
from erniecore_fp8_qat.recipes import Recipe
from erniecore_fp8_qat.scales import InputScale
from erniecore_weight_only.schemes import Rule
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore.api.layers import give, replaced
from erniecore.api.quantizer import PackedLayer
from erniecore_ptq.chain import Batches, Chain, States
from erniecore_ptq.observers import observe
from erniecore_ptq.rounding import decibels, signal_and_noise
from erniecore_ptq.sweep import NoWork, Sweep

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
    return to_packed(model, rules, make, _ones(model, rules, make) if smoothing else {})


def _ones(model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe) -> Factors:
    factors: Factors = {}
    layers = dict(model.named_sublayers())
    for name, recipes in chosen_recipes(model, rules, make).items():
        if not isinstance(layers[name], PackedLayer):
            widths = {parameter: getattr(layers[name], parameter).shape[-2] for parameter in recipes}
            factors[name] = {parameter: paddle.ones([width]) for parameter, width in widths.items()}
    return factors


def calibrated(
    model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe, batches: Batches, *, static: bool, smoothing: float = 0.0
) -> tuple[nn.Layer, Sweep]:
    """``model`` as codes, without values until they are asked for, and what makes them; ``static``: each layer's inputs have the
    largest scale that one of the batches asked for.

    Raises:
        ConfigError: patterns that match nothing.
    """
    model.eval()
    chosen = chosen_recipes(model, rules, make)
    chain, layers = Chain(model, batches), dict(model.named_sublayers())
    originals = {name: layers[name] for name in chosen}
    to_packed(model, rules, make, _ones(model, rules, make) if smoothing else {})
    layers = dict(model.named_sublayers())
    quantized = {name: layers[name] for name in chosen}
    for name, layer in originals.items():
        replaced(model, name, layer)
    return model, Sweep(chain, quantized, InputsWork(chosen, quantized, static=static, smoothing=smoothing))


class InputsWork(NoWork):
    """See ``sweep.Work``. Factors and errors are those on the inputs that a layer had before anything was quantized, scales of
    inputs those on what the quantized layers before it give, where every batch has scales of its own."""

    needs_original = True

    def __init__(
        self, chosen: Mapping[str, dict[str, Recipe]], quantized: Mapping[str, Any], *, static: bool, smoothing: float
    ) -> None:
        self.chosen, self.quantized, self.static, self.smoothing = chosen, quantized, static, smoothing
        self.before: States = []  # of the original layers
        self.after: States = []  # of the quantized ones

    def original(self, chain: Chain, place: int) -> None:
        """The outputs of the original layer, matrix by matrix as where they are measured."""
        layers = dict(chain.model.named_sublayers())
        stacks = {n: layers[n] for n in self._at(chain, place) if not isinstance(layers[n], nn.Linear)}
        for name, layer in stacks.items():
            replaced(chain.model, name, _ByMatrix(layer))
        self.before = chain.through(place, self.before)
        for name, layer in stacks.items():
            replaced(chain.model, name, layer)

    def _at(self, chain: Chain, place: int) -> list[str]:
        return [name for name in self.quantized if chain.place_of(name) == place]

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """Factors, quantized weights, scales of the inputs, and what the outputs lose."""
        layers = dict(chain.model.named_sublayers())
        originals = {name: layers[name] for name in names}
        factors = self._factors(chain, place, originals) if self.smoothing else {}
        partners = fused_partners({name: self.chosen[name] for name in names})
        for name, layer in originals.items():
            beside = [originals[other].weight for other in partners.get(name, ())]
            packed = dict(packed_layer(layer, self.chosen[name], name, beside, factors.get(name, {})).named_buffers())
            for key, buffer in self.quantized[name].named_buffers():
                give(buffer, packed[key])
        if self.static:
            for name in names:
                replaced(chain.model, name, self.quantized[name])
            self.after = self._with_own_scales(chain, place, names, fix=True)
        self.before = self._measure(chain, place, originals)

    def passed(self, chain: Chain, place: int, *, stored: bool) -> None:
        """The outputs with a scale per batch, where these were not computed before."""
        if stored and self.static:
            self.after = self._with_own_scales(chain, place, self._at(chain, place), fix=False)

    def _factors(self, chain: Chain, place: int, layers: Mapping[str, Any]) -> Factors:
        stats = observe(chain, place, self.before, list(layers), AbsMaxObserver)
        inputs = {
            (name, parameter): np.max([one.sizes for one in stats[name][parameter]], axis=0)
            for name in layers
            for parameter in self.chosen[name]
        }
        weights = {(n, p): _input_sizes(getattr(layers[n], p)) for n, p in inputs}
        found: Factors = {}
        for name, parameter in inputs:
            group = [place for place in _group(name, parameter) if place in inputs]
            size, weight = (np.max([of[place] for place in group], axis=0) for of in (inputs, weights))
            known = (size > 0) & (weight > 0)
            ratio = np.where(known, size, 1.0) ** self.smoothing / np.where(known, weight, 1.0) ** (1 - self.smoothing)
            factor = np.clip(ratio, 1 / _MOST, _MOST).astype(np.float32)
            found.setdefault(name, {})[parameter] = paddle.to_tensor(factor)
        return found

    def _with_own_scales(self, chain: Chain, place: int, names: Sequence[str], *, fix: bool) -> States:
        """What the quantized layers give where every batch has its own scales; ``fix``: from here on the inputs have the largest
        of them."""
        scaled = {
            f"{name}.{key}".removesuffix("."): layer
            for name in names
            for key, layer in self.quantized[name].named_sublayers(include_self=True)
            if isinstance(layer, InputScale)
        }
        for layer in scaled.values():
            layer.training = True
            layer.activation_scale.set_value(paddle.zeros([1]))
        found = chain.through(place, self.after)
        for name, layer in scaled.items():
            scale = layer.step_scale().item()
            if not math.isfinite(scale):
                raise NumericsError("the calibration data makes inputs that are not finite", where=name)
            layer.training = False
            layer.step_done(scale if fix else 0.0)
        return found

    def _measure(self, chain: Chain, place: int, originals: Mapping[str, nn.Layer]) -> States:
        """``measured`` of each layer, in dB, with the inputs that it had before anything was quantized; what the original layers
        give."""
        compared = {name: _OutputError(layer, self.quantized[name]) for name, layer in originals.items()}
        for name, layer in compared.items():
            replaced(chain.model, name, layer)
        found = chain.through(place, self.before)
        for name, layer in compared.items():
            replaced(chain.model, name, layer.before)
            layer.after.measured = {parameter: decibels(*sums) for parameter, sums in layer.sums.items()}
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


class _ByMatrix(nn.Layer):  # type: ignore[misc]
    """Stacked experts ``before``, which compute matrix by matrix: the same bits, whether the matrices are watched or not."""

    def __init__(self, before: nn.Layer) -> None:
        super().__init__()
        self.before = before

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """[T, H] -> the weighted sum [T, H] of the selected experts' outputs."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.before.gate_proj.shape[0])
        gate_NI, up_NI = (self.apply_matrix(name, x_NH, routes) for name in ("gate_proj", "up_proj"))
        return ops.combine(self.apply_matrix("down_proj", ops.swiglu(gate_NI, up_NI), routes), weights_Tk, routes)

    def apply_matrix(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """[N, I] -> [N, O] through the matrix as it was."""
        return ops.grouped_linear(x, getattr(self.before, name), routes)


class _OutputError(_ByMatrix):
    """A layer as it was, beside it as codes: it computes what it did, and adds up signal and noise of each output."""

    def __init__(self, before: nn.Layer, after: Any) -> None:
        super().__init__(before)
        self.after = after
        self.sums = {parameter: np.zeros(2) for parameter in after.packed_shapes()}

    def note(self, parameter: str, y: Tensor, y2: Tensor) -> None:
        """Both outputs [.., O]."""
        self.sums[parameter] += signal_and_noise(y, y2)

    def forward(self, x: Tensor, *routing: Tensor) -> Tensor:
        """As the layer was."""
        if isinstance(self.after, PackedExperts):
            return super().forward(x, *routing)
        y = self.before(x)
        self.note("weight", y, self.after(x))
        return y

    def apply_matrix(self, name: str, x: Tensor, routes: Any) -> Tensor:
        """[N, I] -> [N, O] through the matrix as it was."""
        y = super().apply_matrix(name, x, routes)
        if name in self.sums:
            self.note(name, y, self.after.matmul(name, x, routes))
        return y
