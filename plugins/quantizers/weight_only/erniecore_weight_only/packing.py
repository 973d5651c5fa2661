"""A model with its weights packed. What is packed from empty weights is empty itself: one after another is packed when it is
filled, and the floating-point weight is dropped before the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import paddle  # noqa: TID253
from paddle import nn  # noqa: TID253

from erniecore.api import ConfigError, UsageError, ops
from erniecore.api.experts import ExpertLayer
from erniecore.api.layers import stored_dtype
from erniecore_weight_only.head import PackedHead, pack_head
from erniecore_weight_only.layers import PackedExperts, PackedLinear, PackedWeight
from erniecore_weight_only.schemes import STACKED, Place, Rule, Scheme, choose, head_place, places


class Kinds(NamedTuple):
    """What takes the place of a linear layer and of stacked experts, made like ``PackedLinear`` and ``PackedExperts``; parameters
    may have no values yet."""

    linear: Callable[[nn.Linear, Scheme, str], nn.Layer] = PackedLinear
    experts: Callable[[nn.Layer, dict[str, Scheme], str], nn.Layer] = PackedExperts


def pack_model(model: nn.Layer, rules: Sequence[Rule], kinds: Kinds | None = None, head: str = "none") -> nn.Layer:
    """``model`` with the layers that the rules name replaced, and its head as ``head``, a setting, says; a model that is packed
    like this already stays as it is.

    Raises:
        ConfigError: patterns that match nothing, or a layer that cannot be packed. NumericsError: weights that are not finite.
        UsageError: the model is packed in another way.
    """
    shapes = shapes_of(model)
    chosen = choose(places(shapes), rules) | head_place(shapes, head)
    done = packed_weights(model)
    if done:
        _check_same(done, chosen)
    else:
        _replace(model, chosen, kinds or Kinds())
    return model


def keep_stored(model: nn.Layer, rules: Sequence[Rule], kinds: Kinds, dtype: str) -> nn.Layer:
    """As :func:`pack_model`, of those weights alone that have no values yet and that a file has in ``dtype``. Packed layers and
    all others stay as they are."""
    layers, empty = dict(model.named_sublayers(include_self=True)), dict(model.named_parameters())
    found = places(
        {name: tuple(parameter.shape) for name, parameter in empty.items() if stored_dtype(parameter) == dtype}
    )
    number = Counter(place.layer for place in found)
    whole = {name for name, count in number.items() if count == len(STACKED) or ops.is_plain_linear(layers[name])}
    if known := [place for place in found if place.layer in whole]:
        _replace(model, choose(known, rules), kinds)
    return model


def _replace(model: nn.Layer, chosen: Mapping[Place, Scheme], kinds: Kinds) -> None:
    by_layer: dict[str, dict[str, Scheme]] = {}
    for place, scheme in chosen.items():
        by_layer.setdefault(place.layer, {})[place.parameter] = scheme
    layers = dict(model.named_sublayers(include_self=True))
    heads = {place.layer for place in chosen if place.is_head}
    for name in by_layer:
        if name not in heads:
            _check(layers[name], name)
    for name, schemes in by_layer.items():
        above, _, leaf = name.rpartition(".")
        layer = layers.pop(name)
        if name in heads:
            packed = pack_head(model, layer, schemes["weight"], name)
        else:
            packed = _packed(layer, schemes, name, kinds)
        layers[above].add_sublayer(leaf, packed)
        del layer


def shapes_of(model: nn.Layer) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the model's parameters, packed ones as if they were not."""
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return {**found, **{name: weight.original_shape for name, weight in packed_weights(model).items()}}


def packed_weights(model: nn.Layer) -> dict[str, PackedWeight]:
    """Name of a weight, as it was before, -> its packed form."""
    found = {}
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedWeight):
            found[f"{name}.weight" if isinstance(layer, PackedLinear | PackedHead) else name] = layer
    return found


def _packed(layer: nn.Layer, schemes: dict[str, Scheme], name: str, kinds: Kinds) -> nn.Layer:
    if isinstance(layer, nn.Linear):
        return kinds.linear(layer, schemes["weight"], name)
    return kinds.experts(layer, schemes, name)


def _check(layer: nn.Layer, name: str) -> None:
    stacked = isinstance(layer, ExpertLayer)
    if not isinstance(layer, nn.Linear) and not stacked:
        message = f"{name} is a {type(layer).__name__}, not a linear layer: name it here to leave it as it is"
        raise ConfigError.at("quantizer.ignore", message)


def _check_same(done: dict[str, PackedWeight], chosen: dict[Place, Scheme]) -> None:
    asked = {f"{place.layer}.{place.parameter}": scheme for place, scheme in chosen.items()}
    for name in {*done, *asked}:
        found = done[name].scheme if name in done else None
        if found != asked.get(name):
            raise UsageError(
                "this model is quantized in another way already",
                where=name,
                found=str(found),
                expected=str(asked.get(name)),
                fix="quantize the original model",
            )


def stored_bytes(model: nn.Layer) -> int:
    """Bytes of everything that the model holds: parameters, codes, scales and other buffers."""
    stored = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(int(paddle.numel(t)) * t.element_size() for t in stored.values())
