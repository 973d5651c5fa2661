"""Prints the loss of every tenth step."""

from collections.abc import Mapping

from erniecore.api import Plugin, hookimpl
from erniecore.api.callback import RunView


class EveryTenth(Plugin):
    """One line on the main rank."""

    kind, name, summary = "callback", "every-tenth", "the loss of every tenth step"

    @hookimpl
    def ernie_step_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        if run.is_main and run.step % 10 == 0:
            print(run.step, metrics["loss"])


plugin = EveryTenth()
