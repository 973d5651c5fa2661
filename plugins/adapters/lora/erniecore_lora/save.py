"""Writing the adapter of a model in PEFT's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import UsageError
from erniecore.api.layers import child
from erniecore.api.tensors import write_tensors
from erniecore_lora import adapt, peft
from erniecore_lora.lowrank import LowRank
from erniecore_lora.saved import Factors
from erniecore_lora.sizes import Size
from erniecore_lora.stacked import FUSED, fuse
from erniecore_lora.targets import MLP, Target

if TYPE_CHECKING:
    from erniecore_lora.saved import Array


def save(model: nn.Layer, target: Path, *, base: str = "", adapter: str = "") -> Path:
    """Write an adapter (the active one) into the existing directory ``target``; float32. A fixed start (pissa) becomes
    part of A and B.

    Raises:
        UsageError: the model has no adapter.
    """
    name = adapter or adapt.active(model)
    if name is None:
        raise UsageError("the model has no active adapter")
    updates, known = adapt.updates(model, name), adapt.targets_of(model)
    some, head = next(iter(updates.values())), trained_head(model)
    stacked = stacked_as_in_peft(known) and some.magnitude is None
    named, tensors = _as_parameters(updates, known) if stacked else _as_modules(updates, known)
    plain = bool(named.parameters) or any(place.num_experts for place in updates)  # PEFT refuses dropout then
    config = peft.adapter_config(
        named,
        magnitudes=some.magnitude is not None,
        dropout=0.0 if plain else some.dropout,
        base=base,
        whole=head is not None,
    )
    (target / peft.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tensors(target / peft.WEIGHTS, {**({} if head is None else peft.public_whole(as_array(head))), **tensors})
    return target


def stacked_as_in_peft(known: Sequence[Target]) -> bool:
    """Whether a model has routed experts of one kind, which transformers stacks and PEFT wraps as parameters. PEFT then takes
    every ``gate_proj``, ``up_proj`` and ``down_proj`` among ``target_modules`` for the experts', so that those of other
    layers have to be parameters too."""
    return {place.layer.rpartition(".")[2] for place in known if place.num_experts} == {"experts"}


def unreadable(model: nn.Layer) -> str:
    """Why PEFT on transformers' model will not read the adapter that :func:`save` writes, and what to do; empty: it will."""
    name, known = adapt.active(model), adapt.targets_of(model)
    places = [(place, low) for place, low in adapt.updates(model, name).items() if _is_parameter(place)] if name else []
    if not places or not any(place.num_experts for place in known):
        return ""
    merge = "when the run is done, `ernie merge` makes a model that everybody reads"
    if not stacked_as_in_peft(known):
        return f"transformers has other names for the experts of this model than its published code, which adapter/ uses; {merge}"
    if any(low.magnitude is not None for _, low in places):
        return (
            "PEFT refuses DoRA on layers that are named as routed experts are, beside experts that transformers stacks; set "
            f"adapter.targets=attention or use lora; else {merge}"
        )
    return ""


def _as_modules(updates: Mapping[Target, LowRank], known: Sequence[Target]) -> tuple[peft.Named, dict[str, Array]]:
    """Every layer and every expert as a module."""
    experts = any(place.num_experts for place in updates)
    sizes = {module: _size(low, experts) for place, low in updates.items() for module in place.modules()}
    others = [m for place in known for m in place.modules() if m not in sizes]
    tensors: dict[str, Array] = {}
    for place, low in updates.items():
        for module, factors in zip(place.modules(), _split(place, low), strict=True):
            tensors.update(peft.public_tensors(module, factors))
    return peft.Named(sizes, {}, others), tensors


def _as_parameters(updates: Mapping[Target, LowRank], known: Sequence[Target]) -> tuple[peft.Named, dict[str, Array]]:
    """Experts and what has their matrices' names as parameters, the rest as modules."""
    modules: dict[str, Size] = {}
    parameters: dict[str, Size] = {}
    tensors: dict[str, Array] = {}
    stacks: dict[str, dict[str, tuple[Size, Factors]]] = {}
    for place, low in updates.items():
        first, second = low.factors()
        size, factors = _size(low, True), Factors(as_array(first), as_array(second))
        if place.num_experts:
            stacks.setdefault(place.layer, {})[place.parameter] = size, factors
        else:
            (parameters if _is_parameter(place) else modules)[_config_name(place)] = size
            tensors.update(peft.public_tensors(place.layer, factors))
    widths = {(place.layer, place.parameter): place.shape[-1] for place in known}
    for layer, stack in stacks.items():
        outs = {matrix: widths[layer, matrix] for matrix in MLP}
        for parameter, (wrapper, size, factors) in fuse(layer, stack, outs).items():
            parameters[f"{layer}.{parameter}"] = size
            tensors.update(peft.public_tensors(wrapper, factors))
    named = {_config_name(place) for place in known} - modules.keys() - parameters.keys()
    return peft.Named(modules, parameters, sorted(named)), tensors


def _is_parameter(place: Target) -> bool:
    return place.num_experts > 0 or place.layer.rpartition(".")[2] in MLP


def _config_name(place: Target) -> str:
    """What adapter_config.json calls a target of a model with stacked experts."""
    if place.num_experts:
        fused = next(name for name, matrices in FUSED.items() if place.parameter in matrices)
        return f"{place.layer}.{fused}"
    return f"{place.layer}.weight" if _is_parameter(place) else place.layer


def trained_head(model: nn.Layer) -> Tensor | None:
    """The head of a reward model, if the run trains it beside the adapter."""
    score = child(model, "score")
    return None if score is None or score.weight.stop_gradient else score.weight


def _size(low: LowRank, stacked: bool) -> Size:
    """Rank and alpha as they are written.

    PEFT joins gate and up of experts into one update of twice the rank and keeps alpha / rank, also for rsLoRA: beside
    experts every scale is written as that of an ordinary LoRA, which all readers agree on.
    """
    size = low.size.doubled() if low.fixed else low.size
    return Size(size.rank, size.scale * size.rank) if stacked and size.rank_stabilized else size


def _split(place: Target, low: LowRank) -> list[Factors]:
    """One per module: a layer, or each expert of a stack."""
    a, b = (as_array(factor) for factor in low.factors())
    magnitude = None if low.magnitude is None else as_array(low.magnitude)
    if not place.num_experts:
        return [Factors(a, b, magnitude)]
    return [Factors(a[e], b[e], None if magnitude is None else magnitude[e]) for e in range(place.num_experts)]


def as_array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().astype("float32").numpy())
