"""The orthogonal router loss applied by itself after each optimizer step, as decoupled weight decay is:

    W <- W - rate * coefficient * gradient of the loss

so that neither Adam's moments nor the clipping of gradients see it (as the open ERNIE 4.5 pre-training code does).
Letters: H hidden, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api.experts import LoadReduction
from erniecore_ernie45_moe.losses import orthogonal_gradient, orthogonal_loss


class Spreader:
    """Turns the expert vectors of routers apart.

    Args:
        coefficient: 0: does nothing, and has no metrics.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient
        #: [N, 2] by ranks with other layers: sum of the losses, and of how many routers
        self._last: Tensor | None = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, gates: Sequence[Tensor], rate: float, reduction: LoadReduction | None = None) -> None:
        """End of an optimizer step with learning rate ``rate``.

        Args:
            gates: float32 [H, E] each, of the layers that are here; frozen ones stay. reduction: as that of ``Balancer``.
        """
        if self.coefficient <= 0:
            return
        moved = [gate_HE for gate_HE in gates if not gate_HE.stop_gradient]
        for gate_HE in moved:
            gate_HE.set_value(gate_HE - rate * self.coefficient * orthogonal_gradient(gate_HE))
        losses = paddle.stack([orthogonal_loss(gate_HE) for gate_HE in moved]) if moved else paddle.zeros([1])
        seen_12 = paddle.stack([losses.sum(), paddle.to_tensor(float(len(moved)))]).unsqueeze(0)
        gathers = reduction is not None and reduction.splits_layers
        self._last = reduction.gather_layers(seen_12) if reduction is not None and gathers else seen_12

    def metrics(self) -> dict[str, float]:
        """Of the last step: the loss, without its coefficient, as a mean over the layers that were moved, on all ranks. Waits
        for the device once."""
        if self._last is None:
            return {}
        total, count = self._last.numpy().sum(axis=0)
        return {"moe/orthogonal": float(total / count)} if count else {}
