"""Activation observers: calibration statistics of the inputs of each weight, the Hessian Σ xᵀx and the sum of absolute values;
for stacked experts, of the tokens routed to each expert. An observed layer computes as before. One block of the model is
observed at a time, after those before it have been quantized, so that it is calibrated on its actual inputs.

Letters: N rows, I inputs, E experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_weight_only.schemes import STACKED
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import NumericsError, ops
from erniecore_ptq.rounding import Floats

_BLOCK = re.compile(r"^(.*?\.?(?:layers|blocks|h)\.\d+)\.")


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
    """Observed stacked experts; ``stats`` has a list over experts for each matrix."""

    def __init__(self, base: nn.Layer, make: Callable[[int], Any] = HessianObserver) -> None:
        super().__init__()
        self.base = base
        self.stats = {n: [make(getattr(base, n).shape[1]) for _ in range(getattr(base, n).shape[0])] for n in STACKED}

    def forward(self, x_TH: Tensor, experts_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """The output of the layer; its inputs are observed."""
        x_NH, routes = ops.dispatch(x_TH, experts_Tk, len(self.stats["gate_proj"]))
        gate_NI, up_NI = (ops.grouped_linear(x_NH, getattr(self.base, n), routes) for n in ("gate_proj", "up_proj"))
        act_NI = ops.swiglu(gate_NI, up_NI)
        for expert, rows in routes.experts:
            for name, x in (("gate_proj", x_NH), ("up_proj", x_NH), ("down_proj", act_NI)):
                self.stats[name][expert].add(x[rows])
        return ops.combine(ops.grouped_linear(act_NI, self.base.down_proj, routes), weights_Tk, routes)


class _BlockDone(Exception):
    """Raised after the observed block, to end the pass early."""


def blocks(names: Sequence[str]) -> list[list[str]]:
    """Layers in order, by the decoder layer that they belong to; others by themselves, last."""
    found: dict[str, list[str]] = {}
    for name in names:
        match = _BLOCK.match(f"{name}.")
        found.setdefault(match.group(1) if match else f"~{name}", []).append(name)
    return [found[key] for key in sorted(found, key=lambda key: (key.startswith("~"), _numbered(key)))]


def _numbered(key: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]


def observe(
    model: nn.Layer,
    names: Sequence[str],
    batches: Sequence[NDArray[np.int64]],
    make: Callable[[int], Any] = HessianObserver,
    *,
    whole: bool = False,
) -> Mapping[str, Mapping[str, list[Any]]]:
    """Layer -> parameter -> what it saw, one entry or one per expert, as ``make`` counts it. The model is as it was afterwards.
    ``whole``: the layers are anywhere in the model, not in one block of it.

    Raises:
        NumericsError: inputs that are not finite.
    """
    layers = dict(model.named_sublayers(include_self=True))
    observed = {}
    for name in names:
        base = layers[name]
        observed[name] = (ObservedLinear if isinstance(base, nn.Linear) else ObservedExperts)(base, make)
        replace_layer(layers, name, observed[name])
    match = None if whole else _BLOCK.match(f"{names[0]}.")
    block = layers.get(match.group(1)) if match else None
    hook = None if block is None else block.register_forward_post_hook(_stop)
    try:
        with paddle.no_grad():
            for ids in batches:
                with suppress(_BlockDone):
                    model.features(paddle.to_tensor(ids))
    finally:
        if hook is not None:
            hook.remove()
        for name, layer in observed.items():
            replace_layer(layers, name, layer.base)
    found = {name: layer.stats for name, layer in observed.items()}
    _check_finite(found)
    return found


def _stop(*_: Any) -> None:
    raise _BlockDone


def _check_finite(found: Mapping[str, Mapping[str, list[Any]]]) -> None:
    for name, parts in found.items():
        for stats in (one for several in parts.values() for one in several):
            if not stats.finite:
                raise NumericsError("the calibration data makes inputs that are not finite", where=name)


def replace_layer(layers: dict[str, Any], name: str, new: nn.Layer) -> None:
    """``new`` in the place of the layer ``name``; ``layers``: all of the model, with the model itself as ``""``."""
    above, _, leaf = name.rpartition(".")
    layers[above].add_sublayer(leaf, new)
