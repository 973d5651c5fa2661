"""Hooks of optimizers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.optimizer import Optimizer, ParameterSpec, StateBytes, TrainedParameter
    from erniecore.types.process_group import ProcessGroup


class OptimizerHooks:
    """One provider: the optimizer of the run."""

    @hookspec(firstresult=True)
    def ernie_build_optimizer(
        self, config: Section, parameters: Sequence[TrainedParameter], ranks: ProcessGroup
    ) -> Optimizer:
        """The optimizer over the trainable parameters of this rank. Once per run and rank, after the strategy has divided
        the model, before a checkpoint is loaded.

        An update that is elementwise needs nothing of ``ranks``. One that needs the full tensor gathers it:
        ``ranks.gather(tensor, parameter.state_spec)``, and keeps ``state_spec.take`` of the result. May raise
        ``ConfigError`` for a layout that it cannot do, by the key.

        Example::

            @hookimpl
            def ernie_build_optimizer(self, config, parameters):
                from mypackage.sgd import Sgd
                return Sgd(parameters, config.momentum)
        """

    @hookspec(firstresult=True)
    def ernie_optimizer_bytes(self, config: Section, parameters: Sequence[ParameterSpec]) -> Sequence[StateBytes]:
        """What the optimizer keeps for each of ``parameters``, in their order, all ranks together; for the plan, whose
        numbers of optimizer state are the sums. No paddle.

        Example::

            @hookimpl
            def ernie_optimizer_bytes(self, config, parameters):
                return [StateBytes(4 * prod(p.shape)) for p in parameters]
        """
