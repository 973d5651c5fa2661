"""From settings or files to an adapted model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import paddle  # noqa: TID253
from paddle import nn  # noqa: TID253

from erniecore.api import CheckpointError
from erniecore.api.building import add_score_head
from erniecore_lora import adapt as adapting
from erniecore_lora.config import LoraConfig, Variant
from erniecore_lora.lowrank import READING, STARTS, LowRank
from erniecore_lora.saved import Saved, open_saved
from erniecore_lora.shapes import new_sizes
from erniecore_lora.targets import Target

if TYPE_CHECKING:
    from erniecore_lora.saved import Array


def adapt(model: nn.Layer, config: LoraConfig, variant: Variant) -> nn.Layer:
    """``model`` with a trained adapter, everything else frozen.

    Raises:
        ConfigError: targets that match nothing. CheckpointError: ``config.path`` does not fit.
    """
    adapting.freeze(model)
    if config.path:
        saved = open_saved(config.path)
        if saved.description.variant.magnitudes != variant.magnitudes:
            raise CheckpointError("this adapter is of another kind", where=config.path, found=saved.description.kind())
        made = _fill(model, saved, adapting.DEFAULT)
    else:
        made = adapting.add(model, adapting.DEFAULT, new_sizes(config, variant, adapting.targets_of(model)))
        for target, low in made.items():
            _start(model, target, low, config.init, variant)
    for low in made.values():
        low.dropout = config.dropout
    return adapting.adapted_model(model, config.lr_factors)


def load(model: nn.Layer, directory: str | Path, adapter: str = adapting.DEFAULT) -> nn.Layer:
    """``model`` with a saved adapter, active and not trained; further ones need other names.

    Raises:
        CheckpointError: the directory is no adapter, is damaged, or does not fit the model.
    """
    made = _fill(model, open_saved(directory), adapter)
    for low in made.values():
        adapting.freeze(low)
        low.train() if model.training else low.eval()
    return adapting.adapted_model(model)


def _start(model: nn.Layer, target: Target, low: LowRank, init: str, variant: Variant) -> None:
    reads = init in READING or variant.magnitudes
    weight = adapting.wrapped(model)[target.layer].value(target.parameter) if reads else None
    with paddle.no_grad():
        STARTS[init](low, weight)
        if weight is not None and variant.magnitudes:
            low.add_magnitude(weight)


def fill_head(model: nn.Layer, head: Array) -> None:
    """Put the head of a reward model [H, 1] onto ``model``, not trained. Raises ``CheckpointError`` for another shape."""
    weight = add_score_head(model).score.weight
    if tuple(weight.shape) != head.shape:
        raise CheckpointError(
            "the head of the adapter does not fit", found=str(head.shape), expected=str(tuple(weight.shape))
        )
    weight.set_value(paddle.to_tensor(head))
    weight.stop_gradient = True


def _fill(model: nn.Layer, saved: Saved, adapter: str) -> dict[Target, LowRank]:
    known = adapting.targets_of(model)
    if saved.head is not None:
        fill_head(model, saved.head)
    made = adapting.add(model, adapter, saved.sizes(known))
    layers, modules = adapting.wrapped(model), saved.separate(known)
    with paddle.no_grad():
        for target, low in made.items():
            a, b, magnitude, _ = saved.factors(target, modules)
            low.A.set_value(paddle.to_tensor(a).astype(low.A.dtype))
            low.B.set_value(paddle.to_tensor(b).astype(low.B.dtype))
            if magnitude is not None:
                low.add_magnitude(layers[target.layer].value(target.parameter), paddle.to_tensor(magnitude))
    return made
