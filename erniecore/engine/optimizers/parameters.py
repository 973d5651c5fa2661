"""The trainable parameters of a model as an optimizer gets them, and the norm of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import paddle
from erniecore_ops.adamw import square_sum

from erniecore.config.core import TrainSection
from erniecore.engine.config_hash import matches
from erniecore.engine.optimizers.roles import count_layers, factor_of, is_decayed, layer_factors, role_of
from erniecore.engine.process_group import SingleProcess
from erniecore.types.model import Layout
from erniecore.types.optimizer import Optimizer, TrainedParameter
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.types.model import Layer, Tensor

#: of a model that says nothing of its parameters
NO_LAYOUT = Layout(())


def freeze(model: Layer, patterns: Sequence[str]) -> None:
    """Train no parameter whose name fits one of ``patterns`` (``train.freeze``)."""
    for name, parameter in model.named_parameters() if patterns else ():
        if matches(name, patterns):
            parameter.stop_gradient = True


def trained_parameters(
    named: Iterable[tuple[str, Tensor]],
    train: TrainSection,
    *,
    ranks: ProcessGroup | None = None,
    layout: Layout = NO_LAYOUT,
    factors: Mapping[str, float] | None = None,
    adapted: bool = False,
) -> list[TrainedParameter]:
    """Every parameter of ``named`` that is not frozen, in the same order. All ranks call it together.

    Args:
        named: structured name -> parameter on this rank. train: weight decay, and layer-wise decay of the learning rate.
        factors: pattern (``fnmatch`` over names) -> factor of the learning rate; the first match counts.
        layout: of the model. adapted: an adapter is trained.
    Raises:
        ValueError: nothing is trainable.
    """
    ranks = ranks or SingleProcess()
    trained = [(name, parameter) for name, parameter in named if not parameter.stop_gradient]
    if not trained:
        raise ValueError("no parameter is trainable")
    num_layers = max(
        ranks.all_gather_object(count_layers(name for name, _ in trained))
    )  # stages of a pipeline have some of them
    by_layer = layer_factors((name for name, _ in trained), train.layer_lr_decay, num_layers)
    found = []
    for name, parameter in trained:
        spec = ranks.shard_spec(name, parameter.shape)
        found.append(
            TrainedParameter(
                name,
                parameter,
                role=role_of(name, spec.shape, layout, adapted=adapted),
                shard_spec=spec,
                part=ranks.update_range(name, parameter.shape),
                factor=by_layer[name] * factor_of(name, factors or {}),
                weight_decay=train.weight_decay if is_decayed(name, len(spec.shape)) else 0.0,
            )
        )
    return found


def gradient_square_sum(optimizer: Optimizer, counts: Callable[[str], bool] = lambda name: True) -> Tensor:
    """Σ g² over the gradients that count, float32 scalar, still on the device. Not finite if one of them is not."""
    return square_sum([gradient for name, gradient in optimizer.gradients() if counts(name)])


def first_not_finite(optimizer: Optimizer) -> str:
    """The first tensor of this rank that an update has made infinite or NaN, a trained parameter or state of one; empty: none.
    The optimizer tells of what it wrote (``checked``), or is looked at in a pass over all of it."""
    states = [(slot.name, slot.parameter) for slot in optimizer.slots if slot.parameter.size]
    # what is checked is checked in float32 or bfloat16
    narrow = [parameter.isfinite().all() for _, parameter in states if parameter.dtype == paddle.float16]
    states += [(name, tensor) for name, tensor in optimizer.state_tensors().items() if tensor.size]
    sums = optimizer.checked if optimizer.checked is not None else square_sum([tensor for _, tensor in states])
    if math.isfinite(float(sums)) and (not narrow or bool(paddle.stack(narrow).all())):
        return ""  # a sum can overflow where nothing is infinite
    return next((name for name, tensor in states if not bool(tensor.astype("float32").isfinite().all())), "")
