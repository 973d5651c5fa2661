"""Stochastic gradient descent without state."""

from collections.abc import Sequence

from erniecore.api import hookimpl
from erniecore.api.optimizer import Optimizer, OptimizerPlugin, ParameterSpec, StateBytes, TrainedParameter


class SgdPlugin(OptimizerPlugin):
    """Builds the optimizer; the learning rate and its schedule are the engine's."""

    name, summary = "sgd", "stochastic gradient descent"

    @hookimpl
    def ernie_build_optimizer(self, parameters: Sequence[TrainedParameter]) -> Optimizer:
        import paddle

        from erniecore.api.adamw import ParameterSlot

        class Sgd(Optimizer):
            slots = [ParameterSlot(parameter, (), "float32", offload=False) for parameter in parameters]

            def step(self, learning_rate: float, scale: float = 1.0) -> None:
                self.num_updates += 1
                with paddle.no_grad():
                    for slot in self.slots:
                        if (gradient := slot.gradient) is not None:
                            rate = learning_rate * slot.given.factor * scale
                            paddle.assign(slot.target - rate * gradient.astype("float32"), output=slot.target)
                            slot.write_back()

        return Sgd()

    @hookimpl
    def ernie_optimizer_bytes(self, parameters: Sequence[ParameterSpec]) -> Sequence[StateBytes]:
        return [StateBytes(0, 0)] * len(parameters)


plugin = SgdPlugin()
