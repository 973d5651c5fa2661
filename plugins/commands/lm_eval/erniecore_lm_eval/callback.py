"""The callback ``lm-eval``: tasks of lm-evaluation-harness on the model that trains, with each evaluation. Light: the harness is
imported with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from erniecore.api import ConfigError, EnvironmentFault, Plugin, hookimpl, install_command
from erniecore.api.callback import CallbackCapability, Evaluation, RunView
from erniecore_lm_eval.config import PREFIX, Config


class LmEvalCallback(Plugin):
    """Runs tasks on the model as it is, in this process and without a network. Task files are not code."""

    kind = "callback"
    name = "lm-eval"
    summary = "tasks of lm-evaluation-harness on the model while it trains"
    Config = Config
    capabilities = frozenset({CallbackCapability.COMPUTES})
    conformance_config: ClassVar[Mapping[str, Any]] = {"tasks": ["a-task"]}

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """The harness is there, ranks have whole models, and the best step can be chosen."""
        config: Config = settings.callbacks[self.name]
        where = f"callbacks.{self.name}"
        if find_spec("lm_eval") is None:
            message = "the callback lm-eval needs the package lm-eval"
            raise EnvironmentFault(message, next=install_command("lm-eval", of="erniecore-lm-eval"))
        every = settings.eval.every
        if config.every and (not every or config.every % every):
            message = f"must be a multiple of eval.every (got {config.every}, eval.every is {every})"
            raise ConfigError.at(f"{where}.every", message)
        if config.every not in (0, every) and settings.eval.best.startswith(PREFIX):
            message = f"{settings.eval.best} is not in every evaluation: leave {where}.every out"
            raise ConfigError.at("eval.best", message)
        if config.include_path and not Path(config.include_path).is_dir():
            raise ConfigError.at(f"{where}.include_path", f"there is no directory {config.include_path}")

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Ranks that share a model would have to decode the same rows at the same time, which the engine does not promise."""
        shared = {axis: run.parallel_plan.degrees.get(axis, 1) for axis in ("tensor", "context")}
        for axis in (axis for axis, degree in shared.items() if degree > 1):
            message = "tasks are evaluated on ranks with whole models: set it to 1, or leave the callback lm-eval out"
            raise ConfigError.at(f"parallel.{axis}", message)

    @hookimpl
    def ernie_evaluate(self, run: RunView, step: int) -> Evaluation | None:
        """The scores of all tasks; each rank computes its share of the requests."""
        config: Config = run.settings.callbacks[self.name]
        if config.every and step % config.every and step != run.total_steps:
            return None
        from erniecore_lm_eval.during_training import evaluate

        return evaluate(run, config, step)


plugin = LmEvalCallback()
