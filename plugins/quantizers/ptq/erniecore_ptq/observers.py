"""Activation observers: calibration statistics of the inputs of each weight, the Hessian Σ xᵀx and the sum of absolute values;
for stacked experts, of the tokens routed to each expert. An observed layer computes as before. One decoder layer is observed at a
time, after those before it have been quantized, so that it is calibrated on its actual inputs.

Letters: N rows, I inputs, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore.api.layers import replaced
from erniecore_ptq.chain import Chain, States
from erniecore_ptq.rounding import Floats


class HessianObserver:
    """Calibration statistics of the inputs of one matrix."""

    def __init__(self, width: int) -> None:
        self.hessian: Floats = np.zeros((width, width))
        self.sizes: Floats = np.zeros(width)
        self.rows = 0

    def add(self, x: Tensor) -> None:
        """Accumulate the statistics of rows [N, I]."""
        if x.shape[0]:
            wide = x.detach().astype("float32")
            self.hessian += paddle.matmul(wide, wide, transpose_x=True).numpy().astype(np.float64)
            self.sizes += wide.abs().sum(axis=0).numpy().astype(np.float64)
            self.rows += int(x.shape[0])

    @property
    def finite(self) -> bool:
        """Whether all observed inputs were finite."""
        return bool(np.isfinite(self.hessian).all())

    @property
    def means(self) -> Floats:
        """Mean absolute value of each input."""
        return self.sizes / max(self.rows, 1)


class SizeObserver:
    """Of one matrix, what :class:`HessianObserver` has beside the Hessian."""

    def __init__(self, width: int) -> None:
        self.sizes: Floats = np.zeros(width)
        self.rows = 0

    def add(self, x: Tensor) -> None:
        """Accumulate the statistics of rows [N, I]."""
        if x.shape[0]:
            self.sizes += x.detach().astype("float32").abs().sum(axis=0).numpy().astype(np.float64)
            self.rows += int(x.shape[0])

    @property
    def finite(self) -> bool:
        """Whether all observed inputs were finite."""
        return bool(np.isfinite(self.sizes).all())


class ObservedLinear(nn.Layer):  # type: ignore[misc]
    """An observed linear layer; ``stats`` has one entry, ``weight``."""

    def __init__(self, base: nn.Linear, make: Callable[[int], Any] = HessianObserver) -> None:
        super().__init__()
        self.base = base
        self.stats = {"weight": [make(base.weight.shape[0])]}

    def forward(self, x: Tensor) -> Tensor:
        """The output of the layer; its inputs are observed."""
        self.stats["weight"][0].add(x.reshape([-1, x.shape[-1]]))
        return self.base(x)


class ObservedExperts(nn.Layer):  # type: ignore[misc]
    """Observed stacked experts; ``stats`` has a list over experts for each matrix. ``gate_proj`` and ``up_proj`` read the same
    inputs and have the same list."""

    def __init__(
        self, base: nn.Layer, make: Callable[[int], Any] = HessianObserver, experts: range | None = None
    ) -> None:
        """``experts``: only these are observed; ``stats`` begins with the first of them."""
        super().__init__()
        self.base, self.num_experts = base, base.gate_proj.shape[0]
        self.experts = range(self.num_experts) if experts is None else experts
        first, last = ([make(getattr(base, n).shape[1]) for _ in self.experts] for n in ("gate_proj", "down_proj"))
        self.stats = {"gate_proj": first, "up_proj": first, "down_proj": last}

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """The output of the layer; its inputs are observed."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, self.num_experts)
        gate_NI, up_NI = (ops.grouped_linear(x_NH, getattr(self.base, n), routes) for n in ("gate_proj", "up_proj"))
        act_NI = ops.swiglu(gate_NI, up_NI)
        for expert, rows in routes.experts:
            if expert in self.experts:
                for name, x in (("gate_proj", x_NH), ("down_proj", act_NI)):
                    self.stats[name][expert - self.experts.start].add(x[rows])
        return ops.combine(ops.grouped_linear(act_NI, self.base.down_proj, routes), weights_Tk, routes)


def observe(
    chain: Chain,
    place: int,
    states: States,
    names: Sequence[str],
    make: Callable[[int], Any] = HessianObserver,
    experts: range | None = None,
) -> Mapping[str, Mapping[str, list[Any]]]:
    """Layer -> parameter -> what it saw, one entry or one per expert, as ``make`` counts it. The model is as it was afterwards.

    Args:
        place: of the decoder layer that holds the layers ``names``. states: its inputs, see :meth:`Chain.through`.
        experts: only these are observed.
    Raises:
        NumericsError: inputs that are not finite.
    """
    layers, observed = dict(chain.model.named_sublayers()), dict[str, Any]()
    for name in names:
        base = layers[name]
        linear = isinstance(base, nn.Linear)
        observed[name] = ObservedLinear(base, make) if linear else ObservedExperts(base, make, experts)
        replaced(chain.model, name, observed[name])
    try:
        chain.through(place, states)
    finally:
        for name, layer in observed.items():
            replaced(chain.model, name, layer.base)
    found = {name: layer.stats for name, layer in observed.items()}
    _check_finite(found)
    return found


def _check_finite(found: Mapping[str, Mapping[str, list[Any]]]) -> None:
    for name, parts in found.items():
        for stats in (one for several in parts.values() for one in several):
            if not stats.finite:
                raise NumericsError("the calibration data makes inputs that are not finite", where=name)
