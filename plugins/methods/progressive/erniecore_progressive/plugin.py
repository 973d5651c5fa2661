"""The plugin object of progressive learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore_pretrain.plugin import PretrainPlugin

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodPlugin
from erniecore_progressive.config import ProgressiveConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, RunView, Tokenizer


class ProgressivePlugin(MethodPlugin):
    """Pre-train with sequences, batches and dropout that grow with the rate."""

    name = "progressive"
    summary = "Progressive pre-training: length, batch and dropout grow with the learning rate"
    Config = ProgressiveConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = PretrainPlugin.defaults
    capabilities = PretrainPlugin.capabilities

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Ranks that have whole sequences, and a length to grow to."""
        if settings.data.static_shapes:
            raise ConfigError.at("data.static_shapes", "windows and batches of progressive grow; set it to false")
        for axis in ("pipeline", "context"):
            if settings.parallel.degree(axis) != 1:
                raise ConfigError.at(
                    f"parallel.{axis}", "windows of sequences need whole sequences on every rank: set it to 1"
                )
        if settings.method.start_length > settings.data.max_seq_len:
            longest = settings.data.max_seq_len
            raise ConfigError.at("method.start_length", f"longer than data.max_seq_len ({longest}), to which it grows")

    @hookimpl
    def ernie_build_objective(self, config: ProgressiveConfig, policy: Any) -> Objective:
        """The likelihood of pre-training, on what the schedule leaves of a step."""
        from erniecore_progressive.objective import ProgressiveObjective

        return ProgressiveObjective(config, policy)

    @hookimpl
    def ernie_build_encoder(self, config: ProgressiveConfig, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Documents, as in pre-training."""
        from erniecore_pretrain.encoder import PretrainEncoder

        return PretrainEncoder(tokenizer, max_length, keep_end=not config.document_mask)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """The schedule ends where the warm-up of the rate does, unless the settings say otherwise."""
        from erniecore_progressive.objective import ProgressiveObjective
        from erniecore_progressive.schedule import growing_steps

        objective, settings = run.objective, run.settings
        assert isinstance(objective, ProgressiveObjective)
        objective.max_length = settings.data.max_seq_len
        objective.steps = growing_steps(settings.method.steps, settings.train, run.total_steps)


plugin = ProgressivePlugin()
