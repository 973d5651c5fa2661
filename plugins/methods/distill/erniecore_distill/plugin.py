"""The plugin object of distillation. What it builds is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_distill.config import DistillConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer


class DistillPlugin(MethodPlugin):
    """Learn a teacher's distributions over the next token, mixed with fine-tuning."""

    name = "distill"
    summary = "Distillation: a student learns a teacher's distributions over the next token"
    Config = DistillConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (2e-5, "that of `sft`"),
        "train.warmup_ratio": (0.03, "that of `sft`"),
        "train.accumulation": (
            8,
            "eight sequences per step, as in the example configurations of ERNIEKit and LLaMA-Factory",
        ),
    }
    capabilities = frozenset({MethodCapability.REFERENCE})

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Combinations that single keys cannot see."""
        method = settings.method
        if not method.teacher:
            raise ConfigError.at("method.teacher", "name the teacher's model directory or run: method.teacher=DIR")
        if not Path(method.teacher).is_dir():
            raise ConfigError.at("method.teacher", f"no such directory: {method.teacher}")
        if method.cache and not method.top_k:
            raise ConfigError.at(
                "method.cache", "the whole vocabulary is too large for a disk; set method.top_k, for example 64"
            )
        for key in settings.model.augments() if method.cache else ():
            raise ConfigError.at(
                "method.cache", f"its values are those of images that do not change: leave {key} out, or this"
            )

    @hookimpl
    def ernie_build_objective(
        self, config: DistillConfig, policy: Any, reference: Any, tokenizer: Tokenizer
    ) -> Objective:
        """Divergence from the teacher, mixed with the likelihood of the labels. ``reference``: a teacher that is open
        already (``ernie eval --reference DIR``)."""
        from erniecore_distill import opening
        from erniecore_distill.objective import DistillObjective
        from erniecore_distill.teachers import OnlineTeacher, Teacher

        teacher: Teacher
        if reference is None:
            teacher = opening.open_teacher(config, policy, tokenizer)
        else:
            opening.check_top_k(config, policy)
            model = opening.same_size(reference, policy)
            teacher = OnlineTeacher(model, top_k=config.top_k, temperature=config.temperature)
        return DistillObjective(config, policy, teacher)

    @hookimpl
    def ernie_build_encoder(
        self, config: DistillConfig, tokenizer: Tokenizer, max_length: int, too_long: str
    ) -> Encoder:
        """Conversations to samples, as in fine-tuning."""
        from erniecore_sft.encoder import SftEncoder

        how = "truncate" if too_long == "auto" else too_long
        return SftEncoder(tokenizer, max_length, how)

    @hookimpl
    def ernie_checkpoint_saved(self, run: RunView) -> None:
        """What the teacher has said is on disk with the checkpoint."""
        cache = cache_of(run)
        if cache is not None:
            cache.flush()

    @hookimpl
    def ernie_run_end(self, run: RunView) -> None:
        """Keep the rest, and say how large the cache is."""
        cache = cache_of(run)
        if cache is not None:
            cache.flush()
            run.emit("teacher_cache", samples=len(cache), bytes=cache.num_bytes, path=str(cache.directory))


def cache_of(run: Any) -> Any:
    """The cache of a run's teacher; None without one."""
    from erniecore_distill.objective import DistillObjective
    from erniecore_distill.teachers import CachedTeacher

    objective = run.objective
    teacher = objective.teacher if isinstance(objective, DistillObjective) else None
    return teacher.cache if isinstance(teacher, CachedTeacher) else None


plugin = DistillPlugin()
