"""How a router that knows nothing of modalities spreads them over experts: metrics of the loads, beside what balances them.

Letters: N experts, L layers with experts, M modalities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie45_moe.balance import Balancer, Measured
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253

from erniecore_ernie5.sequence import MODALITIES

#: share of the experts whose overlap is measured (ERNIE 5.0, arXiv:2602.04705)
TOP = 0.25
Floats = NDArray[np.floating]


def normalized_entropy(load_N: Floats) -> float:
    """-sum p log p / log N of the shares p of a load: 1 when it is even, 0 when one expert has it all; nan of no load."""
    total = load_N.sum()
    if not total:
        return float("nan")
    shares = load_N[load_N > 0] / total
    return float(-(shares * np.log(shares)).sum() / np.log(len(load_N)))


def overlap(one_N: Floats, other_N: Floats, top: float = TOP) -> float:
    """Intersection over union of the experts with the highest loads, a share ``top`` of all; of equal loads the first."""
    count = max(1, round(top * len(one_N)))
    best, others = (set(np.argsort(-load, kind="stable")[:count].tolist()) for load in (one_N, other_N))
    return len(best & others) / len(best | others)


class ModalBalancer(Balancer):
    """Also adds up loads by modality. What it does to selection biases is the same."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self._kind_loads: dict[int, Tensor] = {}
        self._last_kinds: Tensor | None = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def observe(self, measured: Mapping[int, Measured]) -> None:
        """Adds the loads of one training pass, by modality too."""
        super().observe(measured)
        for place, entry in measured.items():
            if entry.kind_loads is not None:
                load_ME = entry.kind_loads.detach()
                self._kind_loads[place] = self._kind_loads[place] + load_ME if place in self._kind_loads else load_ME

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, biases: Mapping[int, tuple[Tensor, Sequence[bool]]]) -> None:
        """End of an optimizer step."""
        super().step(biases)
        if self._kind_loads:
            load_LME = paddle.stack([self._kind_loads[place] for place in sorted(self._kind_loads)])
            self._last_kinds = load_LME if self.reduction is None else self.reduction.sum_tokens(load_LME)
        self._kind_loads = {}

    def metrics(self) -> dict[str, float]:
        """Of the last step, as means over layers: ``moe/entropy_<modality>`` and ``moe/overlap_<one>_<other>``, for modalities
        that the step had."""
        found = super().metrics()
        if self._last_kinds is None:
            return found
        load_LME = self._last_kinds.numpy()
        there = [at for at in range(len(MODALITIES)) if load_LME[:, at].sum() > 0]
        names = list(MODALITIES)
        for at in there:
            found[f"moe/entropy_{names[at]}"] = float(np.mean([normalized_entropy(load[at]) for load in load_LME]))
        for one, other in combinations(there, 2):
            shared = np.mean([overlap(load[one], load[other]) for load in load_LME])
            found[f"moe/overlap_{names[one]}_{names[other]}"] = float(shared)
        return found
