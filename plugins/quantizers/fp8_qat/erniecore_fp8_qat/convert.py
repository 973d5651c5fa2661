"""A model whose layers compute in FP8, and that model as codes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from erniecore_weight_only.schemes import Rule, choose, places
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, UsageError
from erniecore.api.experts import ExpertLayer
from erniecore_fp8_qat.layers import QatExperts, QatLinear, QatStack, fused
from erniecore_fp8_qat.packed import PackedExperts, PackedLinear, PackedWeight, PackingContext
from erniecore_fp8_qat.recipes import Recipe
from erniecore_fp8_qat.scales import InputScale

#: width of a layer's inputs -> how it computes
MakeRecipe = Callable[[int], Recipe]


def to_qat(model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe, warmup: int, rate: float) -> nn.Layer:
    """``model`` with the layers that the rules name computing in FP8; a model that does so already stays as it is.

    Raises:
        ConfigError: patterns that match nothing, or a layer that is not linear. NumericsError: weights that are not finite.
        UsageError: the model is quantized in another way.
    """
    chosen = chosen_recipes(model, rules, make)
    done = _done(model, (QatLinear, QatStack))
    if done or _done(model, (PackedWeight,)):
        _check_same(done, chosen)
        return model
    layers = dict(model.named_sublayers(include_self=True))
    for name, recipes in chosen.items():
        base = layers[name]
        _check(base, name)
        if isinstance(base, nn.Linear):
            new: nn.Layer = QatLinear(base, recipes["weight"], warmup, rate, name)
        else:
            new = QatExperts(base, recipes, warmup, rate, name)
        _replace(layers, name, new)
    layers = dict(model.named_sublayers())
    for name, others in fused_partners(chosen).items():
        layers[name].partners = [layers[other].weight for other in others]
    return model


def to_packed(
    model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe, factors: Mapping[str, Mapping[str, Tensor]] | None = None
) -> nn.Layer:
    """``model``, trained in FP8 or not, with these layers as codes; what was trained keeps its input scales. ``factors``: layer
    -> parameter -> see ``packed.PackingContext``.

    Raises:
        ConfigError, NumericsError, UsageError: see :func:`to_qat`.
    """
    chosen, factors = chosen_recipes(model, rules, make), factors or {}
    done = _done(model, (PackedWeight,))
    if done:
        _check_same(done, chosen)
        return model
    trained = _done(model, (QatLinear, QatStack))
    if trained:
        _check_same(trained, chosen)
    layers = dict(model.named_sublayers(include_self=True))
    partners = {name: [layers[other].weight for other in others] for name, others in fused_partners(chosen).items()}
    for name, recipes in chosen.items():
        base = layers[name]
        _check(base, name)
        _replace(layers, name, packed_layer(base, recipes, name, partners.pop(name, ()), factors.get(name, {})))
        del base
    return model


def packed_layer(
    base: Any, recipes: dict[str, Recipe], name: str, partners: Sequence[Tensor], factors: Mapping[str, Tensor]
) -> nn.Layer:
    """What takes the place of the layer ``base``; see ``packed.PackingContext``. Without values where ``base`` has none."""
    if isinstance(base, nn.Linear | QatLinear):
        source = base if isinstance(base, QatLinear) else None
        about = PackingContext(source, partners, factors.get("weight"))
        new: nn.Layer = PackedLinear(base, recipes["weight"], name, about)
    else:
        new = PackedExperts(base, recipes, name, factors)
    new.eval()
    return new


def chosen_recipes(model: nn.Layer, rules: Sequence[Rule], make: MakeRecipe) -> dict[str, dict[str, Recipe]]:
    """Layer -> parameter -> how it computes; also of a model that is quantized already."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedWeight):
            shapes[f"{name}.weight" if isinstance(layer, PackedLinear) else name] = layer.shape
    chosen: dict[str, dict[str, Recipe]] = {}
    for place in choose(places(shapes), rules):
        chosen.setdefault(place.layer, {})[place.parameter] = make(place.shape[-2])
    return chosen


def fused_partners(chosen: Mapping[str, Mapping[str, Recipe]]) -> dict[str, list[str]]:
    """Linear layer -> those beside it whose weights have one scale with its own."""
    above: dict[str, dict[str, Recipe]] = {}
    for name, recipes in chosen.items():
        if "weight" in recipes:
            parent, _, leaf = name.rpartition(".")
            above.setdefault(parent, {})[leaf] = recipes["weight"]
    return {
        f"{parent}.{name}": [f"{parent}.{other}" for other in others]
        for parent, leaves in above.items()
        for name, others in fused(leaves).items()
    }


def _done(model: nn.Layer, kinds: tuple[type[InputScale], ...]) -> dict[str, dict[str, Recipe]]:
    """The same of what has been replaced."""
    found: dict[str, dict[str, Recipe]] = {}
    for name, layer in model.named_sublayers():
        if isinstance(layer, kinds):
            above, _, leaf = name.rpartition(".")
            linear = isinstance(layer, QatLinear | PackedLinear)
            key, parameter = (name, "weight") if linear else (above, leaf.removesuffix("_fp8"))
            found.setdefault(key, {})[parameter] = layer.recipe
    return found


def _check_same(done: dict[str, dict[str, Recipe]], chosen: dict[str, dict[str, Recipe]]) -> None:
    for name in {*done, *chosen}:
        if done.get(name) != chosen.get(name):
            raise UsageError(
                "this model is quantized in another way already",
                where=name,
                found=str(done.get(name)),
                expected=str(chosen.get(name)),
                fix="quantize the original model",
            )


def _check(layer: nn.Layer, name: str) -> None:
    stacked = isinstance(layer, ExpertLayer)
    if not isinstance(layer, nn.Linear | QatLinear) and not stacked:
        message = f"{name} is a {type(layer).__name__}, not a linear layer: name it here to leave it as it is"
        raise ConfigError.at("quantizer.ignore", message)


def _replace(layers: dict[str, Any], name: str, new: nn.Layer) -> None:
    above, _, leaf = name.rpartition(".")
    layers.pop(name)
    layers[above].add_sublayer(leaf, new)
