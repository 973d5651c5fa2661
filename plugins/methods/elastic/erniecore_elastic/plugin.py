"""The plugin objects of elastic training: pre-training and fine-tuning that also train the smaller models inside the model.
Losses live beside them and are imported when built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_pretrain.plugin import PretrainPlugin
from erniecore_sft.plugin import SftPlugin

from erniecore.api import ConfigError, hookimpl
from erniecore_elastic.config import ElasticPretrainConfig, ElasticSection, ElasticSftConfig

if TYPE_CHECKING:
    from erniecore.api.method import Objective, RunView


class _Elastic:
    """The hooks that both methods share."""

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Sizes fit the model and the ranks."""
        from erniecore_elastic.starting import start

        start(run)

    @hookimpl
    def ernie_checkpoint_saved(self, run: RunView) -> None:
        """How much each expert is used is in the run's directory, for ``ernie extract``."""
        from erniecore_elastic.starting import keep_usage

        keep_usage(run)


class ElasticPretrainPlugin(_Elastic, PretrainPlugin):
    """Learn every next token of documents, with the model and with smaller ones inside it."""

    name = "elastic-pt"
    summary = "Elastic pre-training: one run also trains the smaller models inside the model (ERNIE 5.0)"
    Config = ElasticPretrainConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Something is elastic, and ranks have whole rows."""
        check(settings)

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """That of `pt`, of which each micro-step runs all or a part."""
        from erniecore_elastic.objective import ElasticPretrainObjective

        options = {"mtp_weight": config.mtp_weight, "accuracy": config.accuracy}
        return ElasticPretrainObjective(policy, elastic=config, document_mask=config.document_mask, **options)


class ElasticSftPlugin(_Elastic, SftPlugin):
    """Learn the assistant's turns, with the model and with smaller ones inside it."""

    name = "elastic-sft"
    summary = "Elastic fine-tuning: one run also trains the smaller models inside the model (ERNIE 5.0)"
    Config = ElasticSftConfig

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Those of `sft`, and :func:`check`."""
        super().ernie_check_settings(settings)
        check(settings)

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """That of `sft`, of which each micro-step runs all or a part."""
        from erniecore_elastic.objective import ElasticSftObjective

        options = {"mtp_weight": config.mtp_weight, "accuracy": config.accuracy}
        return ElasticSftObjective(policy, elastic=config, neftune_alpha=config.neftune_alpha, **options)


def check(settings: Any) -> None:
    """Raises ``ConfigError`` where there is nothing elastic, or where ranks divide rows by position."""
    method: ElasticSection = settings.method
    if not method.active:
        message = (
            "name the smaller models: method.depths=[6] (layers), method.widths=[8] (experts), method.selected=[1]"
        )
        raise ConfigError.at("method.depths", f"there is nothing elastic; {message}")
    for key in settings.parallel.shards_positions():
        raise ConfigError.at(
            key, "elastic training needs whole rows on every rank; leave it out, or train with pt or sft"
        )
    if method.retain < 1 and method.depths:
        raise ConfigError.at(
            "method.retain", "chunks of a pipeline are skipped in place of layers; leave method.depths out"
        )
    if method.retain < 1 and settings.parallel.degree("pipeline") == 1:
        raise ConfigError.at("method.retain", "there is no pipeline; name method.depths instead")


pretraining = ElasticPretrainPlugin()
fine_tuning = ElasticSftPlugin()
