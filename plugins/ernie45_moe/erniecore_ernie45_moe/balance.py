"""Even expert load without a loss: after each optimizer step the selection bias of overloaded experts goes down and
that of the others up (arXiv:2408.15664). Also the router's metrics, from the same counts.

Letters: L mixture-of-experts layers, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253


class Measured(NamedTuple):
    """What one layer saw in one training pass.

    Attributes:
        load: float32 [E], assignments to each expert (of the biased selection, before any capacity).
        entropy: float32 scalar, see ``losses.router_entropy``.
        losses: name -> scalar with gradient, without coefficient; only those that are trained with.
    """

    load: Tensor
    entropy: Tensor
    losses: Mapping[str, Tensor]


def moved_bias(bias_1E: Tensor, load_E: Tensor, rate: float) -> Tensor:
    """bias + rate * sign(mean load - load); an expert with exactly the mean load keeps its bias."""
    return bias_1E + rate * paddle.sign(load_E.mean() - load_E)


def _same(load_LE: Tensor) -> Tensor:
    return load_LE


class Balancer:
    """Adds up loads over the micro-batches of a step. Layers return their loads instead of counting themselves, so
    recomputing a layer in the backward pass counts nothing twice.

    Attributes:
        all_reduce: sums loads [L, E] over the ranks that saw different tokens; a parallel plugin replaces it.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.all_reduce: Callable[[Tensor], Tensor] = _same
        self._load_LE: Tensor | None = None
        self._entropies: list[Tensor] = []
        self._last: Tensor | None = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def observe(self, measured: Sequence[Measured]) -> None:
        """One training pass: one entry per mixture-of-experts layer."""
        load_LE = paddle.stack([entry.load.detach() for entry in measured])
        self._load_LE = load_LE if self._load_LE is None else self._load_LE + load_LE
        self._entropies.append(paddle.stack([entry.entropy.detach() for entry in measured]).mean())

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, biases: Sequence[tuple[Tensor, bool]]) -> None:
        """End of an optimizer step. ``biases``: per layer, the bias [1, E] and whether its router is trained."""
        if self._load_LE is None:
            return
        load_LE = self.all_reduce(self._load_LE)
        for (bias_1E, trained), load_E in zip(biases, load_LE, strict=True):
            if trained and self.rate > 0:
                bias_1E.set_value(moved_bias(bias_1E, load_E, self.rate))
        uneven = (load_LE.max(axis=1) / load_LE.mean(axis=1).clip(min=1.0)).max()
        self._last = paddle.stack([uneven, paddle.stack(self._entropies).mean()])
        self._load_LE, self._entropies = None, []

    def metrics(self) -> dict[str, float]:
        """Of the last step: the busiest expert's load relative to the mean of its layer, and the routers' entropy.

        Waits for the device once."""
        if self._last is None:
            return {}
        uneven, entropy = self._last.numpy().tolist()
        return {"moe/max_load": uneven, "moe/router_entropy": entropy}
