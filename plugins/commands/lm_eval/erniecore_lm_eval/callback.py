"""The callback ``lm-eval``: tasks of lm-evaluation-harness on the model that trains, with each evaluation. Light: the harness is
imported with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from erniecore.api import ConfigError, EnvironmentFault, Plugin, hookimpl, install_command
from erniecore.api.callback import Evaluation, RunView
from erniecore_lm_eval.config import PREFIX, Config

#: axes along which a rank has a part of the model, or needs others for a pass
_SHARED = ("tensor", "context", "pipeline", "expert")


class LmEvalCallback(Plugin):
    """Runs tasks on the model as it is, in this process and without a network. Task files are not code."""

    kind = "callback"
    name = "lm-eval"
    summary = "tasks of lm-evaluation-harness on the model while it trains"
    Config = Config
    generates = True
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
        # ranks that share a model would have to decode the same rows at the same time, which the engine does not promise
        for axis in (axis for axis in _SHARED if settings.parallel.degree(axis) > 1):
            message = "tasks are evaluated on ranks with whole models: set it to 1, or leave the callback lm-eval out"
            raise ConfigError.at(f"parallel.{axis}", message)
        if config.include_path and not Path(config.include_path).is_dir():
            raise ConfigError.at(f"{where}.include_path", f"there is no directory {config.include_path}")

    @hookimpl
    def ernie_evaluate(self, run: RunView, step: int) -> Evaluation | None:
        """The scores of all tasks; each rank computes its share of the requests."""
        config: Config = run.settings.callbacks[self.name]
        if config.every and step % config.every and step != run.total_steps:
            return None
        from erniecore_lm_eval.during_training import evaluate

        return evaluate(run, config, step)


plugin = LmEvalCallback()
