"""Adapters of linear layers that are no low-rank update of their own: what ``erniecore_vera`` and ``erniecore_oft`` share of
making and writing. Reading is in ``linear_files.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle import nn  # noqa: TID253

from erniecore.api import UsageError
from erniecore.api.adapter import PackedLayer
from erniecore.api.tensors import write_tensors
from erniecore_lora import adapt, peft
from erniecore_lora.build import fill_head
from erniecore_lora.layers import Adapted
from erniecore_lora.save import as_array, trained_head
from erniecore_lora.targets import Target, choose, shortest_suffixes

if TYPE_CHECKING:
    from erniecore_lora.config import LinearAdapterConfig
    from erniecore_lora.linear_files import SavedLinear
    from erniecore_lora.lowrank import WeightChange
    from erniecore_lora.saved import Array


def wrapper(kind: type[Adapted]) -> adapt.WrapperOf:
    """``kind`` for linear layers, also quantized ones; None for the rest."""

    def of(layer: nn.Layer, parameter: str) -> type[Adapted] | None:
        packed = dict(layer.packed_shapes()) if isinstance(layer, PackedLayer) else {}
        return kind if parameter == "weight" and (isinstance(layer, nn.Linear) or parameter in packed) else None

    return of


def experts_left_out(model: nn.Layer, config: LinearAdapterConfig) -> int:
    """How many stacks of routed experts the targets of the settings name; of a model that was not adapted yet."""
    return sum(target.num_experts > 0 for target in choose(adapt.targets_of(model), config.targets))


def put_head(model: nn.Layer, saved: SavedLinear) -> None:
    """The head of a reward model, if the adapter brings one."""
    if saved.head is not None:
        fill_head(model, saved.head)


def finish_loading(model: nn.Layer, made: Mapping[Target, WeightChange]) -> nn.Layer:
    """``model`` with a loaded adapter that is not trained."""
    for change in made.values():
        adapt.freeze(change)
        change.train() if model.training else change.eval()
    return adapt.adapted_model(model)


def active_changes(model: nn.Layer) -> dict[Target, Any]:
    """What the active adapter trains. Raises ``UsageError`` if there is none."""
    name = adapt.active(model)
    if name is None:
        raise UsageError("the model has no active adapter")
    return adapt.updates(model, name)


def write(
    model: nn.Layer,
    target: Path,
    base: str,
    settings: Mapping[str, Any],
    tensors: Callable[[Any], Mapping[str, Array]],
    shared: Mapping[str, Array] | None = None,
) -> Path:
    """Write the active adapter into the existing directory ``target``.

    Args:
        settings: of adapter_config.json, ``peft_type`` among them. tensors: what is trained of one layer -> its parts.
        shared: part -> array of all layers together.
    """
    changes, head = active_changes(model), trained_head(model)
    names = {place.layer for place in changes}
    others = [place.layer for place in adapt.targets_of(model) if not place.num_experts and place.layer not in names]
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "modules_to_save": ["score"] if head is not None else None,
        "revision": None,
        "target_modules": shortest_suffixes(names, others),
        "task_type": "SEQ_CLS" if head is not None else "CAUSAL_LM",
        **settings,
    }
    (target / peft.CONFIG).write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n", encoding="utf-8")
    found = {} if head is None else peft.public_whole(as_array(head))
    for place, change in changes.items():
        found |= {f"{peft.PREFIX}{place.layer}.{part}": array for part, array in tensors(change).items()}
    found |= {f"base_model.{part}": array for part, array in (shared or {}).items()}
    write_tensors(target / peft.WEIGHTS, found)
    return target
