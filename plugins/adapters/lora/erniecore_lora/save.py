"""Writing the adapter of a model in PEFT's layout."""

from __future__ import annotations

import json
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
from erniecore_lora.shapes import Size
from erniecore_lora.targets import Target

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
    updates = adapt.updates(model, name)
    stacked = any(place.num_experts for place in updates)  # PEFT then refuses dropout, too
    sizes = {module: _size(low, stacked) for place, low in updates.items() for module in place.modules()}
    others = [m for place in adapt.targets_of(model) for m in place.modules() if m not in sizes]
    some, head = next(iter(updates.values())), _head(model)
    config = peft.adapter_config(
        sizes,
        others,
        magnitudes=some.magnitude is not None,
        dropout=0.0 if stacked else some.dropout,
        base=base,
        whole=head is not None,
    )
    (target / peft.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors: dict[str, Array] = {} if head is None else peft.public_whole(_array(head))
    for place, low in updates.items():
        for module, factors in zip(place.modules(), _split(place, low), strict=True):
            tensors.update(peft.public_tensors(module, factors))
    write_tensors(target / peft.WEIGHTS, tensors)
    return target


def _head(model: nn.Layer) -> Tensor | None:
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
    a, b = (_array(factor) for factor in low.factors())
    magnitude = None if low.magnitude is None else _array(low.magnitude)
    if not place.num_experts:
        return [Factors(a, b, magnitude)]
    return [Factors(a[e], b[e], None if magnitude is None else magnitude[e]) for e in range(place.num_experts)]


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().astype("float32").numpy())
