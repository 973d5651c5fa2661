"""The plugin object of distillation from a teacher at another site. What it builds is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_distill.plugin import DistillPlugin
from erniecore_distill.plugin import plugin as distill

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_remote_distill.config import RemoteDistillConfig

if TYPE_CHECKING:
    from pathlib import Path

    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer
    from erniecore_remote_distill.objective import RemoteDistillObjective


class RemoteDistillPlugin(MethodPlugin):
    """Learn the distributions of a teacher at another site, of which only the likeliest tokens travel."""

    name = "remote-distill"
    summary = "Distillation from a teacher at another site, of which only the likeliest tokens travel"
    Config = RemoteDistillConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = DistillPlugin.defaults
    capabilities = frozenset({MethodCapability.REFERENCE})

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Where the teacher is, and a wait that does not count as hanging."""
        method, hang = settings.method, settings.run.hang_timeout
        if method.teacher:
            raise ConfigError.at(
                "method.teacher", "this method asks the teacher at method.teacher_at; leave it out, or use distill"
            )
        for key, value in (("teacher_at", method.teacher_at), ("key", method.key), ("certificate", method.certificate)):
            if not value:
                raise ConfigError.at(
                    f"method.{key}", "a student needs it; `ernie wan teach` and `ernie wan keys` say what"
                )
        name, seconds = ("timeout", method.timeout) if method.late == "wait" else ("patience", method.patience)
        if 0 < hang <= seconds:
            raise ConfigError.at(
                f"method.{name}", f"a wait of {seconds:g} s would count as hanging; raise run.hang_timeout ({hang:g} s)"
            )

    @hookimpl
    def ernie_build_objective(
        self, config: RemoteDistillConfig, policy: Any, reference: Any, tokenizer: Tokenizer
    ) -> Objective:
        """Divergence from the remote teacher, mixed with the likelihood of the labels. ``reference``: a teacher that is open
        already (``ernie eval --reference DIR``)."""
        from erniecore_distill.opening import check_top_k, tokenizer_digest, vocabulary

        from erniecore_remote_distill.objective import RemoteDistillObjective
        from erniecore_remote_distill.teacher import RemoteTeacher

        if reference is not None:
            return distill.ernie_build_objective(config, policy, reference, tokenizer)
        check_top_k(config, policy)
        return RemoteDistillObjective(
            config, policy, RemoteTeacher(config, tokenizer_digest(tokenizer), vocabulary(policy))
        )

    @hookimpl
    def ernie_build_encoder(
        self, config: RemoteDistillConfig, tokenizer: Tokenizer, max_length: int, too_long: str
    ) -> Encoder:
        """Conversations to samples, as in fine-tuning."""
        return distill.ernie_build_encoder(config, tokenizer, max_length, too_long)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Join the teacher, and open what a run with `late: skip` has decided so far."""
        from erniecore_remote_distill.decisions import Decisions

        objective = objective_of(run)
        objective.remote.begin(run.out, run.emit)
        if run.is_main and run.settings.method.late == "skip":
            objective.decisions = Decisions(run.out / "teacher" / "decisions.jsonl")

    @hookimpl
    def ernie_collect_metrics(self, run: RunView) -> Mapping[str, float]:
        """Bytes of questions and replies of this rank so far."""
        client = objective_of(run).remote.client
        return {"teacher/sent": client.sent, "teacher/received": client.received}

    @hookimpl
    def ernie_checkpoint_saved(self, run: RunView, path: Path) -> None:
        """What the teacher has said is on disk with the checkpoint."""
        cache = objective_of(run).remote.cache
        if cache is not None:
            cache.flush()

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        """Keep the rest, say what it took, and tell the teacher that this student is done."""
        objective = objective_of(run)
        remote = objective.remote
        if remote.cache is not None:
            remote.cache.flush()
        if error is None and run.is_main:
            remote.leave()
        client = remote.client
        run.emit(
            "teacher_traffic", samples=remote.asked_samples, positions=remote.asked_positions, sent=client.sent,
            received=client.received, late_steps=objective.late_steps,
        )  # fmt: skip
        client.close()


def objective_of(run: Any) -> RemoteDistillObjective:
    """The objective of a run of this method."""
    from erniecore_remote_distill.objective import RemoteDistillObjective

    assert isinstance(run.objective, RemoteDistillObjective)
    return run.objective


plugin = RemoteDistillPlugin()
