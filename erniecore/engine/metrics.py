"""Metrics of one step: sums and weights over micro-batches, read from the device in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import paddle

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

#: name -> (sum, weight); the sum may still be on the device
Sums = Mapping[str, "tuple[Tensor | float, float]"]


def add(parts: Iterable[Sums]) -> dict[str, tuple[Tensor | float, float]]:
    """Sum of sums and of weights by name. A name that only some parts have counts where it occurs."""
    total: dict[str, tuple[Tensor | float, float]] = {}
    for part in parts:
        for name, (value, weight) in part.items():
            if name in total:
                value, weight = total[name][0] + value, total[name][1] + weight
            total[name] = value, weight
    return total


def read(sums: Sums, *extra: Tensor) -> tuple[dict[str, float], list[float]]:
    """Means by name, and ``extra`` one-element tensors as floats, with a single transfer from the device.

    A mean without weight is 0/0 and left out.
    """
    found, values = read_sums(sums, *extra)
    return means(found), values


def read_sums(sums: Sums, *extra: Tensor) -> tuple[dict[str, tuple[float, float]], list[float]]:
    """The sums themselves on the host, and ``extra``, with a single transfer."""
    tensors = {name: value for name, (value, _) in sums.items() if isinstance(value, paddle.Tensor)}
    flat = [t.detach().astype("float32").reshape([1]) for t in (*tensors.values(), *extra)]
    values = [float(v) for v in paddle.concat(flat).numpy()] if flat else []
    on_host = dict(zip(tensors, values, strict=False))
    found = {n: (on_host[n] if n in on_host else float(value), float(weight)) for n, (value, weight) in sums.items()}
    return found, values[len(tensors) :]


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Sum / weight by name, where there is a weight."""
    return {name: value / weight for name, (value, weight) in sums.items() if weight}
