"""An exponential moving average of the weights, for evaluation and export; training goes on with the raw weights.

    ē₀ = θ₀        ē ← ē + (1 − α)(θ − ē)

It starts from the weights (not from zero), so constant weights stay constant without a bias correction. With a
constant learning rate it equals a decay whose window is 1/(1 − α) steps (ERNIE 4.5 technical report, 2025).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import paddle

from erniecore.engine.arrays import Array, to_numpy
from erniecore.engine.optimizers.state import load_exactly

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


class Ema:
    """The average of all trainable parameters, in float32.

    Args:
        parameters: (structured name, parameter); those with ``stop_gradient`` are left out.
        decay: α of the formula.
    """

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], decay: float) -> None:
        self.decay = decay
        self._parameters = {name: p for name, p in parameters if not p.stop_gradient}
        self._average = {name: p.detach().astype("float32").clone() for name, p in self._parameters.items()}

    def update(self) -> None:
        """Move the average towards the weights; once after each applied step."""
        with paddle.no_grad():
            for name, parameter in self._parameters.items():
                self._average[name].lerp_(parameter.astype("float32"), 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block the model has the averaged weights; afterwards its own, bit for bit."""
        with paddle.no_grad():
            own = {name: p.detach().clone() for name, p in self._parameters.items()}
            for name, parameter in self._parameters.items():
                parameter.set_value(self._average[name].astype(parameter.dtype))
        try:
            yield
        finally:
            with paddle.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.set_value(own[name])

    def state_tensors(self) -> dict[str, Tensor]:
        """Structured name -> average."""
        return dict(self._average)

    def state_arrays(self) -> dict[str, Array]:
        """Structured name -> average, float32."""
        return {name: to_numpy(tensor) for name, tensor in self._average.items()}

    def load_state_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore what :meth:`state_arrays` returned; raises ``CheckpointError`` if names or shapes differ."""
        load_exactly(self._average, arrays, "moving average")
