"""GPTQ and AWQ on a whole model, one decoder layer after the other: collect calibration statistics of its inputs, which come
from the layers quantized before, round its weights, and go on with what the quantized layer gives. Of stacked experts some are
observed at a time: their Hessians are larger than they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import paddle  # noqa: TID253
from erniecore_weight_only.codec import pack
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.packing import shapes_of
from erniecore_weight_only.schemes import Rule, Scheme, choose, places
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, DataError
from erniecore.api.experts import ExpertLayer
from erniecore.api.layers import give, replaced
from erniecore_ptq import rounding
from erniecore_ptq.chain import Batches, Chain, States
from erniecore_ptq.config import AwqConfig, GptqConfig
from erniecore_ptq.layers import ScaledExperts, ScaledLinear
from erniecore_ptq.observers import HessianObserver, SizeObserver, observe
from erniecore_ptq.rounding import Floats, Rounded
from erniecore_ptq.sweep import NoWork, Sweep, all_layers

TOO_SHORT = "ERN-D077"
#: bytes of the Hessians of experts that are observed at a time
_HESSIANS = 1 << 30


class MatrixRounding(Protocol):
    """How one matrix is rounded, of a linear layer or of all experts, one expert after another."""

    #: whether sums over the inputs of all experts are needed before
    needs_means: bool

    def begin(self, scheme: Scheme, stats: Sequence[Any] | None) -> Any:
        """A new matrix; ``stats`` of all experts where ``needs_means``."""
        ...

    def add(self, state: Any, w: Floats, stats: HessianObserver) -> None:
        """The next expert's weight [I, O], and what it saw."""
        ...

    def end(self, state: Any, weights: Iterator[Floats]) -> tuple[list[Rounded], NDArray[np.float32] | None, float]:
        """Rounded weights, factors of the inputs [I], and signal to noise of the output on the data, in dB."""
        ...


class GptqRounding:
    """Each matrix by itself; one without inputs is rounded to nearest."""

    needs_means = False

    def __init__(self, config: GptqConfig) -> None:
        self.options = {n: getattr(config, n) for n in ("damping", "by_activation", "search_scale")}

    def begin(self, scheme: Scheme, stats: Sequence[Any] | None) -> Any:
        """Nothing is known before."""
        return scheme, list[Rounded](), np.zeros(2)

    def add(self, state: Any, w: Floats, stats: HessianObserver) -> None:
        """The weight is rounded, and its error counted."""
        scheme, rounded, sums = state
        h = stats.hessian
        one = rounding.gptq(w, h, scheme, **self.options) if stats.rows else rounding.nearest(w, scheme)
        rounded.append(one)
        sums += rounding.error(w, np.zeros_like(w), h), rounding.error(w, one.dequantize(scheme.group), h)

    def end(self, state: Any, weights: Iterator[Floats]) -> tuple[list[Rounded], None, float]:
        """All experts' weights, as they were rounded."""
        _, rounded, sums = state
        return rounded, None, rounding.decibels(*map(float, sums))


class AwqRounding:
    """One set of factors for all experts of a stack."""

    needs_means = True

    def __init__(self, config: AwqConfig) -> None:
        self.grid = config.grid

    def begin(self, scheme: Scheme, stats: Sequence[Any] | None) -> rounding.AwqSearch:
        """The factors that will be tried."""
        assert stats is not None
        rows = max(sum(s.rows for s in stats), 1)
        means: Floats = np.sum([s.sizes for s in stats], axis=0) / rows
        return rounding.AwqSearch(means, scheme, self.grid)

    def add(self, state: rounding.AwqSearch, w: Floats, stats: HessianObserver) -> None:
        """The error with each of the factors is counted."""
        state.add(w, stats.hessian)

    def end(
        self, state: rounding.AwqSearch, weights: Iterator[Floats]
    ) -> tuple[list[Rounded], NDArray[np.float32], float]:
        """Weights rounded with the best factors."""
        wide = state.factors.astype(np.float64)[:, None]
        rounded = [rounding.nearest(w * wide, state.scheme) for w in weights]
        return rounded, state.factors, rounding.decibels(state.signal, state.noise)


class IntegerWork(NoWork):
    """See ``sweep.Work``: the inputs of a layer are what the quantized layers before it give."""

    def __init__(self, quantized: dict[str, Any], method: MatrixRounding, notes: list[str]) -> None:
        self.quantized, self.method, self.notes = quantized, method, notes
        self.states: States = []

    def passed(self, chain: Chain, place: int, *, stored: bool) -> None:
        """The outputs of the quantized layer are the inputs of the next."""
        self.states = chain.through(place, self.states)

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """Layers outside of the chain may depend on each other, and are quantized one by one."""
        if place < len(chain.names):
            self._together(chain, place, names)
            return
        for name in names:
            self._together(chain, place, [name])
            replaced(chain.model, name, self.quantized[name])

    def _together(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        layers = all_layers(chain.model)
        linear = [name for name in names if isinstance(layers[name], nn.Linear)]
        if linear:
            stats = dict(observe(chain, place, self.states, linear))
            for name in linear:
                self._linear(layers[name], self.quantized[name], stats.pop(name)["weight"])
        for name in names:
            if name not in linear:
                self._experts(chain, place, name, layers[name])

    def _linear(self, base: nn.Linear, layer: Any, stats: list[HessianObserver]) -> None:
        state = self.method.begin(layer.scheme, stats)
        self.method.add(state, _matrix(base.weight), stats[0])
        _finish(layer, layer, "weight", self.method.end(state, iter([_matrix(base.weight)])))

    def _experts(self, chain: Chain, place: int, name: str, base: Any) -> None:
        """Some experts after another: as many as there is memory for their Hessians."""
        layer = self.quantized[name]
        packed = dict(layer.named_children())
        count, width, inner = base.gate_proj.shape
        means = observe(chain, place, self.states, [name], SizeObserver)[name] if self.method.needs_means else None
        states = {n: self.method.begin(weight.scheme, means[n] if means else None) for n, weight in packed.items()}
        unreached = dict.fromkeys(packed, 0)
        step = max(1, _HESSIANS // (8 * (width**2 + inner**2)))
        for start in range(0, count, step):
            some = range(start, min(start + step, count))
            stats = observe(chain, place, self.states, [name], HessianObserver, some)[name]
            for parameter, state in states.items():
                for expert, observed in zip(some, stats[parameter], strict=True):
                    self.method.add(state, _matrix(getattr(base, parameter)[expert]), observed)
                    unreached[parameter] += not observed.rows
        for parameter, state in states.items():
            weights = (_matrix(getattr(base, parameter)[expert]) for expert in range(count))
            _finish(layer, packed[parameter], parameter, self.method.end(state, weights))
            if unreached[parameter]:
                self.notes.append(
                    f"{name}.{parameter}: no calibration token reached {unreached[parameter]} of {count} experts"
                )


def to_integers(
    model: nn.Layer, rules: Sequence[Rule], batches: Batches, method: MatrixRounding, kinds: tuple[type, type]
) -> tuple[nn.Layer, Sweep]:
    """``model`` with the layers that the rules name as integer codes, without values until they are asked for, and what makes
    them; ``kinds``: of linear layers and of stacked experts.

    Raises:
        ConfigError: patterns that match nothing, or a layer that is not linear. DataError: too little calibration data.
    """
    model.eval()
    chosen = _chosen(model, rules)
    check_enough(model, list(chosen), batches)
    chain, layers = Chain(model, batches), all_layers(model)
    quantized = {name: _packed(layers[name], schemes, name, kinds) for name, schemes in chosen.items()}
    for layer in quantized.values():
        layer.measured = {}
    model.quantizer_notes = []
    return model, Sweep(chain, quantized, IntegerWork(quantized, method, model.quantizer_notes))


def to_nearest(chain: Chain, originals: dict[str, Any], model: nn.Layer) -> Sweep:
    """What makes the values of ``model``, whose weights need no data: a layer of it is packed when the data passes through.
    ``originals``: all layers before some were packed."""
    quantized = {
        name: layer for name, layer in model.named_sublayers() if isinstance(layer, PackedLinear | PackedExperts)
    }
    for name in quantized:
        replaced(model, name, originals[name])
    return Sweep(chain, quantized, NearestWork(quantized))


class NearestWork(NoWork):
    """See ``sweep.Work``: weights are rounded to nearest."""

    def __init__(self, quantized: dict[str, Any]) -> None:
        self.quantized = quantized

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """Each layer is packed from its original."""
        layers = all_layers(chain.model)
        for name in names:
            layer = self.quantized[name]
            schemes = {"weight": layer.scheme} if isinstance(layer, PackedLinear) else _schemes(layer)
            packed = dict(_packed(layers[name], schemes, name, PLAIN).named_buffers())
            for key, buffer in layer.named_buffers():
                give(buffer, packed[key])


def _schemes(layer: PackedExperts) -> dict[str, Scheme]:
    return {name: weight.scheme for name, weight in layer.named_children()}


def structure(model: nn.Layer, rules: Sequence[Rule], kinds: tuple[type, type]) -> nn.Layer:
    """``model`` with the same layers, rounded to nearest: what a directory's codes are read into."""
    chosen = _chosen(model, rules)
    layers = all_layers(model)
    for name, schemes in chosen.items():
        replaced(model, name, _packed(layers[name], schemes, name, kinds))
    return model


def _chosen(model: nn.Layer, rules: Sequence[Rule]) -> dict[str, dict[str, Scheme]]:
    """Layer -> parameter -> form; nothing when the model has been packed by these rules already."""
    chosen: dict[str, dict[str, Scheme]] = {}
    layers = all_layers(model)
    for place, scheme in choose(places(shapes_of(model)), rules).items():
        layer = layers[place.layer]
        if isinstance(layer, PackedWeight | PackedExperts):
            continue
        stacked = isinstance(layer, ExpertLayer)
        if not isinstance(layer, nn.Linear) and not stacked:
            message = (
                f"{place.layer} is a {type(layer).__name__}, not a linear layer: name it here to leave it as it is"
            )
            raise ConfigError.at("quantizer.ignore", message)
        chosen.setdefault(place.layer, {})[place.parameter] = scheme
    return chosen


def check_enough(model: nn.Layer, names: Sequence[str], batches: Batches) -> None:
    """A Hessian of fewer rows than inputs says nothing of the rest, and a maximum over few tokens is none."""
    tokens = sum(int(ids.size) for ids in batches)
    layers = all_layers(model)
    widths = {name: int(layers[name].weight.shape[0]) for name in names if isinstance(layers[name], nn.Linear)}
    widest = max(widths, key=lambda name: widths[name], default="")
    least = widths.get(widest, 32)
    if tokens < least:
        raise DataError(
            "the calibration data is shorter than this quantizer needs",
            where="--calib",
            found=f"{tokens} tokens",
            expected=f"at least {least}" + (f", the width of {widest}" if widest else ""),
            fix="name more rows, as the model will see them in use; some hundred of them are usual",
            code=TOO_SHORT,
        )


def _packed(base: Any, schemes: dict[str, Scheme], name: str, kinds: tuple[type, type]) -> nn.Layer:
    linear = isinstance(base, nn.Linear)
    layer: nn.Layer = kinds[0](base, schemes["weight"], name) if linear else kinds[1](base, schemes, name)
    return layer


def _matrix(weight: Tensor) -> Floats:
    wide: Floats = weight.detach().astype("float32").numpy().astype(np.float64)
    return wide


def _finish(layer: Any, weight: PackedWeight, parameter: str, found: Any) -> None:
    """``layer`` has the rounded ``weight`` as its ``parameter``."""
    rounded, factors, ratio = found
    stacked = parameter != "weight"
    values = [paddle.to_tensor(one.qweight) for one in rounded]
    values = values if weight.scheme.bits == 8 else [pack(one) for one in values]
    scales = np.stack([one.scales if weight.scheme.group else one.scales[..., 0] for one in rounded])
    give(weight.quant_weight, paddle.stack(values) if stacked else values[0])
    give(weight.weight_scale, paddle.to_tensor(scales if stacked else scales[0]))
    if factors is not None:
        give(weight.input_scale, paddle.to_tensor(factors))
    layer.measured[parameter] = ratio


PLAIN = (PackedLinear, PackedExperts)
SCALED = (ScaledLinear, ScaledExperts)
