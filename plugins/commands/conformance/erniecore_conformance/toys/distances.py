"""Parameters of every role with a loss, for optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api.optimizer import Optimizer, ParameterRole, ShardSpec, TrainedParameter
from erniecore.api.testing import SingleProcess
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from erniecore.api.testing import Tensor

#: name -> shape, role
PARAMETERS: dict[str, tuple[tuple[int, ...], ParameterRole]] = {
    "embed.weight": ((7, 4), ParameterRole.EMBEDDING),
    "layers.0.up.weight": ((4, 6), ParameterRole.MATRIX),
    "layers.0.up.bias": ((6,), ParameterRole.OTHER),
    "layers.0.down.weight": ((6, 4), ParameterRole.MATRIX),
    "layers.0.experts.up": ((3, 4, 5), ParameterRole.EXPERTS),
    "norm.weight": ((4,), ParameterRole.OTHER),
}
RATE = 0.01


class Distances:
    """The parameters, their distance to fixed targets as a loss, and an optimizer.

    Args:
        order: of the parameters. dtype: of the parameters. decay: their weight decay. factor: of their learning rates.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        order: Callable[[Sequence[str]], Sequence[str]] = list,
        dtype: str = "float32",
        decay: float = 0.0,
        factor: float = 1.0,
    ) -> None:
        import numpy as np
        import paddle

        self.tensors: dict[str, Tensor] = {}
        for index, (name, (shape, _)) in enumerate(PARAMETERS.items()):
            values = np.random.default_rng(index).normal(size=shape).astype(np.float32)
            self.tensors[name] = paddle.to_tensor(values).astype(dtype)
            self.tensors[name].stop_gradient = False
        given = [
            TrainedParameter(name, self.tensors[name], role, ShardSpec(shape), factor=factor, weight_decay=decay)
            for name in order(list(PARAMETERS))
            for shape, role in [PARAMETERS[name]]
        ]
        self.optimizer: Optimizer = subject.call(
            "ernie_build_optimizer", config=subject.config(), parameters=given, ranks=SingleProcess()
        )

    def loss(self) -> Any:
        """Half the squared distance of all parameters to 0.5."""
        return sum(0.5 * ((tensor.astype("float32") - 0.5) ** 2).sum() for tensor in self.tensors.values())

    def train(self, steps: int, rate: float = RATE, *, scale: float = 1.0, magnify: float = 1.0) -> None:
        """So many steps; the loss is ``magnify`` times as steep."""
        for _ in range(steps):
            (magnify * self.loss()).backward()
            self.optimizer.step(rate, scale)
            self.optimizer.clear_gradients()

    def weights(self) -> dict[str, Any]:
        """Copies of the weights, as float32."""
        return {name: tensor.astype("float32").numpy().copy() for name, tensor in self.tensors.items()}
