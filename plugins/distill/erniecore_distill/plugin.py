"""The plugin object of distill. What it builds is imported inside the hooks."""

from __future__ import annotations

from typing import Any

from erniecore.api import Encoder, Objective, Plugin, Tokenizer, hookimpl


class DistillPlugin(Plugin):
    """Distillation: a student learns a teacher's distributions."""

    kind, name = "method", "distill"
    summary = "Distillation: a student learns a teacher's distributions"

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """The loss."""
        raise NotImplementedError

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Records to samples."""
        raise NotImplementedError


plugin = DistillPlugin()
