"""The plugin object of the callback ``activations``. Light: the probe is imported when a step is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from erniecore.api import Field, Plugin, Section, hookimpl

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.api.callback import RunView
    from erniecore_activations.probe import Probe


class ActivationsConfig(Section):
    """When the stream is measured."""

    every: int = Field(10, ge=1, description="Measure the first step and every so many steps.")


class Activations(Plugin):
    """Measures on the main rank; a probe is on the model from the start of a step to its metrics."""

    kind = "callback"
    name = "activations"
    summary = "variance of the residual stream behind each layer, and norm of the gradients in it"
    Config = ActivationsConfig

    def __init__(self) -> None:
        #: of the runs that are within a step
        self._probes: dict[int, Probe] = {}

    @hookimpl
    def ernie_step_start(self, run: RunView, step: int) -> None:
        """Put the probe on the model, in steps that are measured."""
        config: ActivationsConfig = run.settings.callbacks[self.name]
        measured = step == 1 or step % config.every == 0
        if run.is_main and measured and run.model is not None:
            from erniecore_activations.probe import Probe

            self._take_off(run)
            self._probes[id(run)] = Probe(run.model)

    @hookimpl
    def ernie_gradients(self, run: RunView, gradients: Mapping[str, Tensor]) -> None:
        """Their norms by layer."""
        if probe := self._probes.get(id(run)):
            probe.take_gradients(gradients)

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """The variances of this step; the probe is taken off."""
        probe = self._take_off(run)
        return {} if probe is None else probe.metrics()

    @hookimpl
    def ernie_run_end(self, run: RunView) -> None:
        """A run that ended within a step leaves nothing on its model."""
        self._take_off(run)

    def _take_off(self, run: RunView) -> Probe | None:
        probe = self._probes.pop(id(run), None)
        if probe is not None:
            probe.close()
        return probe


plugin = Activations()
