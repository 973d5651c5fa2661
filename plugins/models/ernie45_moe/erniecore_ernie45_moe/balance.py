"""Even expert load without a loss: after each optimizer step the selection bias of overloaded experts goes down and
that of the others up (arXiv:2408.15664). Also the router's metrics, from the same counts.

Letters: L mixture-of-experts layers, G routers of a layer (1, or one for each kind of token), E experts of a router,
N ranks that hold different layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api.experts import LoadReduction


class Measured(NamedTuple):
    """What one layer saw in one training pass.

    Attributes:
        load: float32 [G, E], assignments to each expert (of the biased selection, before any capacity).
        entropy: float32 scalar, see ``losses.router_entropy``.
        losses: name -> scalar with gradient, without coefficient; only those that are trained with.
        kind_loads: float32 [M, E], the load by kind of token, where the caller told kinds apart.
    """

    load: Tensor
    entropy: Tensor
    losses: Mapping[str, Tensor]
    kind_loads: Tensor | None = None


def moved_bias(bias_GE: Tensor, load_GE: Tensor, rate: float) -> Tensor:
    """bias + rate * sign(mean load - load) for each router; an expert with exactly the mean load keeps its bias."""
    return bias_GE + rate * paddle.sign(load_GE.mean(axis=-1, keepdim=True) - load_GE)


class Balancer:
    """Adds up loads over the micro-batches of a step. Layers return their loads instead of counting themselves, so
    recomputing a layer in the backward pass counts nothing twice. Layers are known by their place in the model: a pass may
    run only some of them.

    Attributes:
        reduction: of loads [L, G, E] over ranks, ``None``: one rank sees all tokens and has all layers.
        last_loads: place of a layer -> its loads [G, E] of the last step, over all ranks; empty after a step without any.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.reduction: LoadReduction | None = None
        self._loads: dict[int, Tensor] = {}
        self._entropies: list[Tensor] = []
        self._last: Tensor | None = None
        self.last_loads: dict[int, Tensor] = {}

    @property
    def loads(self) -> Tensor:
        """[L, G, E] of the layers that have run, in their order."""
        return paddle.stack([self._loads[place] for place in sorted(self._loads)])

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def observe(self, measured: Mapping[int, Measured]) -> None:
        """One training pass: one entry per mixture-of-experts layer that it ran."""
        for place, entry in measured.items():
            load_GE = entry.load.detach()
            self._loads[place] = self._loads[place] + load_GE if place in self._loads else load_GE
            self._entropies.append(entry.entropy.detach())

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, biases: Mapping[int, tuple[Tensor, Sequence[bool]]]) -> None:
        """End of an optimizer step. ``biases``: per layer that is here, the bias [G, E] and which of its routers are
        trained."""
        reduction, self.last_loads = self.reduction, {}
        gathers = reduction is not None and reduction.splits_layers
        if not self._loads and not gathers:
            return
        seen_13 = paddle.zeros([1, 3])  # how uneven, sum and number of entropies
        if self._loads:
            load_LGE = self.loads if reduction is None else reduction.sum_tokens(self.loads)
            self.last_loads = dict(zip(sorted(self._loads), load_LGE, strict=True))
            for place, load_GE in self.last_loads.items():
                bias_GE, trained = biases[place]
                if any(trained) and self.rate > 0:
                    moved = paddle.to_tensor([[is_trained] for is_trained in trained])
                    bias_GE.set_value(paddle.where(moved, moved_bias(bias_GE, load_GE, self.rate), bias_GE))
            uneven = (load_LGE.max(axis=-1) / load_LGE.mean(axis=-1).clip(min=1.0)).max()
            entropy = paddle.stack(self._entropies).sum()
            seen_13 = paddle.stack([uneven, entropy, paddle.to_tensor(float(len(self._entropies)))]).unsqueeze(0)
        self._last = reduction.gather_layers(seen_13) if reduction is not None and gathers else seen_13
        self._loads, self._entropies = {}, []

    def metrics(self) -> dict[str, float]:
        """Of the last step: the busiest expert's load relative to the mean of its layer, and the routers' entropy.

        Waits for the device once."""
        if self._last is None:
            return {}
        seen_N3 = self._last.numpy()
        return {
            "moe/max_load": float(seen_N3[:, 0].max()),
            "moe/router_entropy": float(seen_N3[:, 1].sum() / max(seen_N3[:, 2].sum(), 1.0)),
        }
