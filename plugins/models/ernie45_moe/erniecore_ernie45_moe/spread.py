"""The orthogonal router loss applied by itself after each optimizer step, as decoupled weight decay is:

    W <- W - rate * coefficient * gradient of the loss

so that neither Adam's moments nor the clipping of gradients see it (as the open ERNIE 4.5 pre-training code does).
Letters: H hidden, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_ernie45_moe.losses import orthogonal_gradient, orthogonal_loss


class Spreader:
    """Turns the expert vectors of routers apart.

    Args:
        coefficient: 0: does nothing, and has no metrics.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient
        self._last: Tensor | None = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, gates: Sequence[Tensor], rate: float) -> None:
        """End of an optimizer step with learning rate ``rate``. ``gates``: float32 [H, E] each; frozen ones stay."""
        moved = [gate_HE for gate_HE in gates if not gate_HE.stop_gradient] if self.coefficient > 0 else []
        for gate_HE in moved:
            gate_HE.set_value(gate_HE - rate * self.coefficient * orthogonal_gradient(gate_HE))
        if moved:
            self._last = paddle.stack([orthogonal_loss(gate_HE) for gate_HE in moved]).mean()

    def metrics(self) -> dict[str, float]:
        """Of the last step: the loss, without its coefficient, as a mean over layers. Waits for the device once."""
        return {} if self._last is None else {"moe/orthogonal": float(self._last)}
