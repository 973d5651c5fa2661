"""GPTQ and AWQ on a whole model, one decoder layer after the other: collect calibration statistics of its inputs, which come
from the layers quantized before, round its weights, and replace the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_weight_only.codec import pack
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.packing import shapes_of
from erniecore_weight_only.schemes import Rule, Scheme, choose, places
from numpy.typing import NDArray
from paddle import nn  # noqa: TID253

from erniecore.api import ConfigError, DataError
from erniecore.api.experts import ExpertLayer
from erniecore_ptq import rounding
from erniecore_ptq.config import AwqConfig, GptqConfig
from erniecore_ptq.layers import ScaledExperts, ScaledLinear
from erniecore_ptq.observers import HessianObserver, blocks, observe, replace_layer
from erniecore_ptq.rounding import Floats, Rounded

Batches = Sequence[NDArray[np.int64]]
#: all experts' weights [I, O] of one matrix (one for a linear layer), what each saw, the form -> codes and input factors
Rounder = Callable[[list[Floats], list[HessianObserver], Scheme], tuple[list[Rounded], "NDArray[np.float32] | None"]]
TOO_SHORT = "ERN-D077"


def gptq_rounder(config: GptqConfig) -> Rounder:
    """Each matrix by itself; one without inputs is rounded to nearest."""
    options = {n: getattr(config, n) for n in ("damping", "by_activation", "search_scale")}

    def rounded(weights: list[Floats], stats: list[HessianObserver], scheme: Scheme) -> tuple[list[Rounded], None]:
        return [
            rounding.gptq(w, s.hessian, scheme, **options) if s.rows else rounding.nearest(w, scheme)
            for w, s in zip(weights, stats, strict=True)
        ], None

    return rounded


def awq_rounder(config: AwqConfig) -> Rounder:
    """One set of factors for all experts of a stack."""

    def rounded(
        weights: list[Floats], stats: list[HessianObserver], scheme: Scheme
    ) -> tuple[list[Rounded], NDArray[np.float32]]:
        rows = max(sum(s.rows for s in stats), 1)
        means: Floats = np.sum([s.sizes for s in stats], axis=0) / rows
        factors = rounding.awq_scales(weights, [s.hessian for s in stats], means, scheme, config.grid)
        wide = factors.astype(np.float64)[:, None]
        return [rounding.nearest(w * wide, scheme) for w in weights], factors

    return rounded


def to_integers(
    model: nn.Layer, rules: Sequence[Rule], batches: Batches, rounder: Rounder, kinds: tuple[type, type]
) -> nn.Layer:
    """``model`` with the layers that the rules name as integer codes; ``kinds``: of linear layers and of stacked experts.

    Raises:
        ConfigError: patterns that match nothing, or a layer that is not linear. DataError: too little calibration data.
        NumericsError: weights or inputs that are not finite.
    """
    model.eval()
    chosen = _chosen(model, rules)
    check_enough(model, list(chosen), batches)
    notes: list[str] = []
    for names in blocks(list(chosen)):
        stats = observe(model, names, batches)
        layers = dict(model.named_sublayers(include_self=True))
        for name in names:
            replace_layer(layers, name, _packed(layers[name], name, chosen[name], stats[name], rounder, kinds, notes))
    model.quantizer_notes = notes
    return model


def structure(model: nn.Layer, rules: Sequence[Rule], kinds: tuple[type, type]) -> nn.Layer:
    """``model`` with the same layers, rounded to nearest: what a directory's codes are read into."""
    chosen = _chosen(model, rules)
    layers = dict(model.named_sublayers(include_self=True))
    for name, schemes in chosen.items():
        base = layers[name]
        linear = isinstance(base, nn.Linear)
        replace_layer(
            layers, name, kinds[0](base, schemes["weight"], name) if linear else kinds[1](base, schemes, name)
        )
    return model


def _chosen(model: nn.Layer, rules: Sequence[Rule]) -> dict[str, dict[str, Scheme]]:
    """Layer -> parameter -> form; nothing when the model has been packed by these rules already."""
    chosen: dict[str, dict[str, Scheme]] = {}
    layers = dict(model.named_sublayers(include_self=True))
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
    layers = dict(model.named_sublayers(include_self=True))
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


def _packed(
    base: Any,
    name: str,
    schemes: dict[str, Scheme],
    stats: Mapping[str, list[HessianObserver]],
    rounder: Rounder,
    kinds: tuple[type, type],
    notes: list[str],
) -> nn.Layer:
    linear = isinstance(base, nn.Linear)
    layer = kinds[0](base, schemes["weight"], name) if linear else kinds[1](base, schemes, name)
    layer.measured = {}
    for parameter, scheme in schemes.items():
        original = getattr(base, parameter).detach().astype("float32").numpy().astype(np.float64)
        weights = [original] if linear else list(original)
        found, factors = rounder(weights, stats[parameter], scheme)
        _fill(layer if linear else getattr(layer, parameter), found, scheme, linear)
        if factors is not None:
            (layer if linear else getattr(layer, parameter)).input_scale.set_value(factors)
        wide = 1.0 if factors is None else factors.astype(np.float64)[:, None]
        layer.measured[parameter] = _output_db(
            weights, [r.dequantize(scheme.group) / wide for r in found], stats[parameter]
        )
        unreached = sum(not one.rows for one in stats[parameter])
        if unreached:
            notes.append(f"{name}.{parameter}: no calibration token reached {unreached} of {len(weights)} experts")
    return layer


def _fill(weight: PackedWeight, found: list[Rounded], scheme: Scheme, linear: bool) -> None:
    qweight, scales = (np.stack([getattr(r, part) for r in found]) for part in ("qweight", "scales"))
    if linear:
        qweight, scales = qweight[0], scales[0]
    stored = paddle.to_tensor(qweight)
    weight.quant_weight.set_value(stored if scheme.bits == 8 else pack(stored))
    weight.weight_scale.set_value(scales if scheme.group else scales[..., 0])


def _output_db(weights: list[Floats], dequantized: list[Floats], stats: list[HessianObserver]) -> float:
    """Signal to noise of the layer's output on the calibration data."""
    signal = sum(rounding.error(w, np.zeros_like(w), s.hessian) for w, s in zip(weights, stats, strict=True))
    noise = sum(rounding.error(w, w2, s.hessian) for w, w2, s in zip(weights, dequantized, stats, strict=True))
    return rounding.decibels(signal, noise)


PLAIN = (PackedLinear, PackedExperts)
SCALED = (ScaledLinear, ScaledExperts)
