"""A metric of evaluations in one file: the L2 norm of the trained weights, by which `eval.best` can choose."""

from typing import Any

from erniecore.api import Plugin, hookimpl
from erniecore.api.callback import Evaluation, RunView


class WeightNorm(Plugin):
    kind, name, summary = "callback", "weight-norm", "the L2 norm of the trained weights"

    @hookimpl
    def ernie_evaluate(self, run: RunView, step: int) -> Evaluation:
        model: Any = run.model
        trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
        squares = sum(float((parameter.astype("float64") ** 2).sum()) for parameter in trained)
        return Evaluation({"weight-norm": squares**0.5}, lower_is_better=frozenset({"weight-norm"}))


plugin = WeightNorm()
