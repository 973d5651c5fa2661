"""The trainable parameters of a model as an optimizer gets them, and the norm of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import paddle
from erniecore_ops.adamw import square_sum

from erniecore.config.core import TrainSection
from erniecore.engine.optimizers.roles import count_layers, factor_of, is_decayed, layer_factors, role_of
from erniecore.engine.process_group import SingleProcess
from erniecore.types.model import Layout
from erniecore.types.optimizer import Optimizer, TrainedParameter
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

#: of a model that says nothing of its parameters
NO_LAYOUT = Layout(())


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
    """The first trained parameter of this rank that is infinite or NaN after an update; empty: none is. One fused pass over
    float32 weights; state that is not finite makes the next weights so, and no checkpoint takes it."""
    own = [(slot.name, slot.parameter) for slot in optimizer.slots if slot.parameter.size]
    wide = [parameter for _, parameter in own if parameter.dtype == paddle.float32]
    narrow = [parameter.isfinite().all() for _, parameter in own if parameter.dtype != paddle.float32]
    if math.isfinite(float(square_sum(wide))) and (not narrow or bool(paddle.stack(narrow).all())):
        return ""  # a sum can overflow where no weight is infinite
    return next((name for name, parameter in own if not bool(parameter.isfinite().all())), "")
