"""The plugin object of online distillation. What it builds is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_pretrain.plugin import PretrainPlugin

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodPlugin
from erniecore_online_distill.config import OnlineDistillConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer

#: axes along which a rank has part of the teacher, or of its rows
_AXES = ("tensor", "pipeline", "expert", "context", "sharding")


class OnlineDistillPlugin(MethodPlugin):
    """Pre-train a teacher, and students from its forward passes."""

    name = "online-distill"
    summary = "Online distillation: students learn from the forward passes of a teacher that is itself trained"
    Config = OnlineDistillConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = PretrainPlugin.defaults
    capabilities = PretrainPlugin.capabilities

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Students that are there, and a layout in which every rank has the whole teacher."""
        method = settings.method
        if not method.students:
            raise ConfigError.at("method.students", "name the students: method.students.NAME=MODEL_DIRECTORY")
        for name, path in method.directories().items():
            if not Path(path).is_dir():
                key = f"method.students.{name}" if name in method.students else "method.assistant"
                raise ConfigError.at(key, f"no such directory: {path}")
        if not (method.attention or method.logits or method.labels):
            raise ConfigError.at("method.attention", "attention, logits and labels are all 0: students learn nothing")
        for axis in _AXES:
            if settings.parallel.degree(axis) != 1:
                raise ConfigError.at(f"parallel.{axis}", "students need the whole teacher on every rank: set it to 1")

    @hookimpl
    def ernie_build_objective(self, config: OnlineDistillConfig, policy: Any, tokenizer: Tokenizer) -> Objective:
        """Mean negative log-likelihood for the teacher; what the students learn beside it."""
        from erniecore_online_distill.objective import OnlineDistillObjective
        from erniecore_online_distill.students import open_students

        return OnlineDistillObjective(config, policy, open_students(config, policy, tokenizer))

    @hookimpl
    def ernie_build_encoder(self, config: OnlineDistillConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Documents, as in pre-training."""
        from erniecore_pretrain.encoder import PretrainEncoder

        return PretrainEncoder(tokenizer, max_length, keep_end=not config.document_mask)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """The students' gradients are summed over the ranks of the run, and their rate follows its schedule."""
        objective = _objective(run)
        objective.ranks = run.ranks
        for student in objective.students:
            run.ranks.attach_model(student.model, objective)  # routers balance what all ranks have
        peak = run.settings.method.learning_rate
        objective.rate_factor = peak / run.settings.train.learning_rate if peak else 1.0

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        """Each student becomes a model directory, once the run is finished."""
        if error is None and run.is_main and run.settings.checkpoint.export:
            from erniecore_online_distill.students import write_student

            for student in _objective(run).students:
                path = write_student(student, run.out / "students" / student.name, steps=run.step)
                run.emit("student", name=student.name, path=str(path), step=run.step)


def _objective(run: Any) -> Any:
    from erniecore_online_distill.objective import OnlineDistillObjective

    assert isinstance(run.objective, OnlineDistillObjective)
    return run.objective


plugin = OnlineDistillPlugin()
