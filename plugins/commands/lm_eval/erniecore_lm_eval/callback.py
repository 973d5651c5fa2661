"""The callback ``lm-eval``: tasks of lm-evaluation-harness on the model that trains, with each evaluation. Light: the harness is
imported with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from erniecore.api import ConfigError, EnvironmentFault, Field, Plugin, Section, hookimpl, install_command
from erniecore.api.callback import CallbackCapability, Evaluation, RunView

#: what the names of the metrics begin with
PREFIX = "lm-eval/"


class Config(Section):
    """The tasks, and how they are asked; the options of ``ernie lm-eval``."""

    tasks: list[str] = Field(description="Tasks, groups, tags, or YAML files.", min_length=1)
    include_path: str = Field("", description="Directory with task files of yours.")
    num_fewshot: int | None = Field(None, ge=0, description="Examples per prompt; empty: as the task has it.")
    limit: int = Field(0, ge=0, description="First rows of each task; 0: all.")
    every: int = Field(0, ge=0, description="Steps between two such evaluations, a multiple of `eval.every`; 0: each.")
    batch_size: int = Field(8, ge=1, description="Completions that are decoded together; scores do not depend on it.")
    max_length: int = Field(0, ge=0, description="Context in tokens; 0: the model's, at most 8192.")
    chat_template: bool = Field(False, description="Prompts go through the chat template.")
    system: str = Field("", description="System message, or text before a prompt.")
    multiturn: bool = Field(True, description="Examples are messages of their own, not part of one.")
    gen_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Generation settings over those of the tasks: `{max_gen_toks: 64}`."
    )
    seed: int = Field(0, ge=0, description="Random seed of examples and of sampling.")
    samples: int = Field(
        8, ge=0, le=100, description="Rows of each task, the first ones, that `lm-eval.jsonl` keeps per evaluation."
    )


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
