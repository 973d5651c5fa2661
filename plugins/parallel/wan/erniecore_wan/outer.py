"""The outer optimizer: what becomes of the common anchor θ once the sites' differences Δ = θ − θ_site are averaged.

Pure functions on float32 vectors, one elementwise operation after the other, so that every site and the coordinator
compute the same bits from the same bits.

* ``sgd``: θ ← θ − η·Δ. With η = 1 the anchor becomes the mean of the sites (LocalSGD).
* ``nesterov``: m ← μ·m + Δ; θ ← θ − η·(Δ + μ·m) (DiLoCo, arXiv 2311.08105, with η = 0.7 and μ = 0.9).
* ``adam``: m ← β₁·m + (1−β₁)·Δ; v ← β₂·v + (1−β₂)·Δ²; θ ← θ − η·m̂ / (√v̂ + ε), with bias correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from erniecore_wan.arrays import AnyArray, Vector

Name = Literal["sgd", "nesterov", "adam"]


@dataclass(frozen=True, slots=True)
class Outer:
    """Settings of an outer optimizer.

    Attributes:
        name: of the rule. rate: η. momentum: μ of ``nesterov``, β₁ of ``adam``. second: β₂. epsilon: ε.
    """

    name: Name = "nesterov"
    rate: float = 0.7
    momentum: float = 0.9
    second: float = 0.95
    epsilon: float = 1e-8


#: name -> float32 [n], and ``count``: int64 [1]; empty before the first step
State = Mapping[str, AnyArray]


def outer_step(rule: Outer, anchor: Vector, delta: Vector, state: State) -> tuple[Vector, dict[str, AnyArray]]:
    """The next anchor and the next state; the arguments stay as they are.

    Args:
        anchor: float32 [n]. delta: float32 [n], the averaged difference of the sites from ``anchor``.
        state: what the last step returned; empty before the first.
    """
    rate = np.float32(rule.rate)
    if rule.name == "sgd":
        return _vector(anchor - rate * delta), {}
    zeros = np.zeros_like(anchor)
    first = np.float32(rule.momentum)
    if rule.name == "nesterov":
        momentum = first * state.get("momentum", zeros) + delta
        return _vector(anchor - rate * (delta + first * momentum)), {"momentum": momentum}
    second, count = np.float32(rule.second), int(state.get("count", np.zeros(1))[0]) + 1
    mean: Vector = first * state.get("momentum", zeros) + (np.float32(1) - first) * delta
    square = second * state.get("square", zeros) + (np.float32(1) - second) * (delta * delta)
    mean_hat = mean / np.float32(1 - rule.momentum**count)
    square_hat = square / np.float32(1 - rule.second**count)
    step: Vector = rate * mean_hat / (np.sqrt(square_hat) + np.float32(rule.epsilon))
    return _vector(anchor - step), {"momentum": mean, "square": square, "count": np.array([count], np.int64)}


def mixed(own: Vector, common: Vector, share: float) -> Vector:
    """What a site goes on with: ``share`` of the common weights and the rest of its own (streaming DiLoCo, arXiv 2501.18512).

    With ``share`` 1 it is ``common`` to the bit.
    """
    if share == 1:
        return _vector(common.copy())
    return _vector(np.float32(share) * common + np.float32(1 - share) * own)


def _vector(values: AnyArray) -> Vector:
    """The same array; what numpy says of the type of a sum differs by version."""
    return np.asarray(values, np.float32)
