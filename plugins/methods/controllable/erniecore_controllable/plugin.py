"""The plugin object of controllable language modeling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_pretrain.plugin import PretrainPlugin

from erniecore.api import hookimpl
from erniecore.api.method import MethodPlugin
from erniecore_controllable.config import ControllableConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer

#: file in the run directory, for ``ernie write``
ATTRIBUTES = "attributes.json"


class ControllablePlugin(MethodPlugin):
    """Learn texts behind their attributes."""

    name = "controllable"
    summary = "Controllable language modeling: genre, topic, keywords, sentiment and length as prompts"
    Config = ControllableConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = PretrainPlugin.defaults

    @hookimpl
    def ernie_build_objective(self, config: ControllableConfig, policy: Any, tokenizer: Tokenizer) -> Objective:
        """Likelihood of the texts, with attributes dropped at random."""
        from erniecore_controllable.objective import ControllableObjective

        return ControllableObjective(config, policy, tokenizer)

    @hookimpl
    def ernie_build_encoder(self, config: ControllableConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Texts behind all of their attributes."""
        from erniecore_controllable.encoder import ControllableEncoder

        return ControllableEncoder(tokenizer, max_length, config.genres)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Say in the run directory which soft tokens a genre has."""
        if run.is_main:
            text = json.dumps({"genres": run.settings.method.genres}, ensure_ascii=False, indent=1)
            (run.out / ATTRIBUTES).write_text(text + "\n", encoding="utf-8")


plugin = ControllablePlugin()
