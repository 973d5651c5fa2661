"""The plugin object of the callback ``eval-generate``. Light: rows are read when a run starts, and what generates is imported
with the first evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from erniecore.api import ConfigError, Plugin, hookimpl
from erniecore.api.callback import Evaluation, RunView
from erniecore_eval_generate.config import PREFIX, Config

if TYPE_CHECKING:
    from erniecore_eval_generate.prompts import Prompt

#: run -> the prompts that it is evaluated on, while it lasts
_PROMPTS: WeakKeyDictionary[RunView, list[Prompt]] = WeakKeyDictionary()


class EvalGenerate(Plugin):
    """Completes the prompts of held-out rows with each evaluation and scores the completions."""

    kind = "callback"
    name = "eval-generate"
    summary = "evaluates a run by what its model writes: exact answers and any reward function"
    Config = Config
    generates = True
    conformance_config: ClassVar[Mapping[str, Any]] = {"data": str(Path(__file__).with_name("two_rows.jsonl"))}

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Reward functions and their settings are there, and the best step can be chosen."""
        from erniecore_eval_generate.metrics import reward_functions

        config: Config = settings.callbacks[self.name]
        reward_functions(config)
        if not (config.data or settings.data.eval):
            raise ConfigError.at(f"callbacks.{self.name}.data", "there are no rows: name some here, or data.eval")
        every = settings.eval.every
        if config.every and (not every or config.every % every):
            message = f"must be a multiple of eval.every (got {config.every}, eval.every is {every})"
            raise ConfigError.at(f"callbacks.{self.name}.every", message)
        if config.every not in (0, every) and settings.eval.best.startswith(PREFIX):
            message = f"{settings.eval.best} is not in every evaluation: leave callbacks.{self.name}.every out"
            raise ConfigError.at("eval.best", message)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Read the rows. Raises ``DataError`` where none has a prompt and a reference."""
        from erniecore_eval_generate.prompts import read_prompts

        _PROMPTS[run], left_out = read_prompts(run.settings, run.settings.callbacks[self.name])
        if left_out and run.is_main:
            run.emit("warning", kind="setup", step=run.step, message=f"{self.name}: {left_out}")

    @hookimpl
    def ernie_evaluate(self, run: RunView, step: int) -> Evaluation | None:
        """Means over all completions, of all ranks together."""
        config: Config = run.settings.callbacks[self.name]
        if config.every and step % config.every and step != run.total_steps:
            return None
        from erniecore_eval_generate.scoring import evaluate

        return evaluate(run, config, _PROMPTS[run], step)


plugin = EvalGenerate()
