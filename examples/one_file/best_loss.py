"""A callback in one file: keeps the lowest loss of the run, and the step that it was at, in best_loss.json."""

import json
from collections.abc import Mapping

from erniecore.api import Plugin, hookimpl
from erniecore.api.callback import RunView


class BestLoss(Plugin):
    kind, name, summary = "callback", "best-loss", "the lowest training loss so far and its step"

    @hookimpl
    def ernie_step_end(self, run: RunView, step: int, metrics: Mapping[str, float]) -> None:
        file = run.out / "best_loss.json"
        if not run.is_main or "loss" not in metrics:
            return
        if not file.exists() or metrics["loss"] < json.loads(file.read_text())["loss"]:
            file.write_text(json.dumps({"step": step, "loss": metrics["loss"]}))


plugin = BestLoss()
