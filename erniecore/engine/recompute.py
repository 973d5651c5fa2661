"""Recomputing activations in the backward pass instead of storing them. It changes memory and time, never numbers:
the random state of the forward pass is restored for the second one. What is recomputed is the model's choice of
blocks; this module only switches it on and runs it.

A model supports recomputation with layers that declare ``recompute: str = "none"`` and ask it in ``forward``::

    class Block(nn.Layer):
        recompute = "none"  # set by the engine to one of GRANULARITIES

        def forward(self, x):
            return recompute(self._block, x) if self.recompute == "full" and self.training else self._block(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from erniecore.errors import ConfigError

if TYPE_CHECKING:
    from erniecore.types.model import Layer

Result = TypeVar("Result")

#: ``full``: whole decoder layers; ``attention``: attention blocks; ``core-attention``: softmax(QK)V only.
GRANULARITIES = ("none", "full", "attention", "core-attention")


def recompute(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """``function(*args, **kwargs)``, whose intermediate tensors are made again when gradients are needed.

    Runs ``function`` at most twice, the second time with the random state of the first. Tensors from a closure are
    allowed. Side effects (counters of a router) happen twice: guard them with :func:`recomputing`.
    """
    import paddle
    from paddle.distributed.fleet.utils import recompute as paddle_recompute

    if not paddle.is_grad_enabled():
        return function(*args, **kwargs)
    runs = _Runs(function)
    # hooks on saved tensors (not a re-entrant autograd) also work when no input needs a gradient, as under an adapter
    result: Result = paddle_recompute(runs, *args, use_reentrant=False, **kwargs)
    return result


_depth = 0


def recomputing() -> bool:
    """Whether the code runs for the second time, inside a backward pass."""
    return _depth > 0


class _Runs:
    """Counts the calls of one recomputed function, so that the second one can be told apart."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        global _depth
        self.calls += 1
        again = self.calls > 1
        _depth += again
        try:
            return self.function(*args, **kwargs)
        finally:
            _depth -= again


def set_recompute(model: Layer, granularity: str) -> int:
    """Set ``recompute`` on every layer of ``model`` that declares it; returns how many.

    Raises:
        ConfigError: a granularity other than ``none`` for a model without such layers.
    """
    if granularity not in GRANULARITIES:
        raise ConfigError.at("train.recompute", f"unknown: {granularity!r}; known: {', '.join(GRANULARITIES)}")
    layers = [layer for layer in model.sublayers(include_self=True) if hasattr(type(layer), "recompute")]
    if granularity != "none" and not layers:
        raise ConfigError.at("train.recompute", f"this model cannot recompute (asked for {granularity!r}); use none")
    for layer in layers:
        layer.recompute = granularity
    return len(layers)
