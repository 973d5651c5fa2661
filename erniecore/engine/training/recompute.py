"""Recomputing activations in the backward pass instead of storing them. It changes memory and time, never numbers:
the random state of the forward pass is restored for the second one. What is recomputed is the model's choice of
blocks: the engine calls the model's ``set_recompute(granularity)``, and the model wraps its blocks in
:func:`recompute`. The second run must have no side effects; a block returns what it measures instead of storing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from erniecore.errors import ConfigError
from erniecore.types.protocols import RecomputableModel

if TYPE_CHECKING:
    from erniecore.types.model import Layer, Tensor

Result = TypeVar("Result")

#: ``full``: whole decoder layers; ``attention``: attention blocks; ``core-attention``: softmax(QK)V only.
GRANULARITIES = ("none", "full", "attention", "core-attention")


def recompute(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """``function(*args, **kwargs)``, whose intermediate tensors are recomputed when gradients are needed.

    Runs ``function`` twice, the second time with the random state of the first. Tensors from a closure are allowed,
    and no input needs a gradient (as under an adapter); without a backward pass it is a plain call.
    """
    import paddle
    from paddle.distributed.fleet.utils import recompute as paddle_recompute

    if not paddle.is_grad_enabled():
        return function(*args, **kwargs)
    # Hooks on saved tensors instead of a re-entrant autograd: those also work when only parameters need gradients. The
    # anchor keeps paddle from warning about that case in every step.
    anchor = paddle.zeros([])
    anchor.stop_gradient = False
    result: Result = paddle_recompute(_without_anchor, anchor, function, *args, use_reentrant=False, **kwargs)
    return result


def _without_anchor(_: Tensor, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    return function(*args, **kwargs)


def set_recompute(model: Layer, granularity: str) -> None:
    """Tell ``model`` what to recompute.

    Raises:
        ConfigError: unknown granularity, or one other than ``none`` for a model that cannot recompute.
    """
    if granularity not in GRANULARITIES:
        raise ConfigError.at("train.recompute", f"unknown: {granularity!r}; known: {', '.join(GRANULARITIES)}")
    if isinstance(model, RecomputableModel):
        model.set_recompute(granularity)
    elif granularity != "none":
        raise ConfigError.at("train.recompute", f"this model cannot recompute (asked for {granularity!r}); use none")
