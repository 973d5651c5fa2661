"""The plugin objects of rl. What they build is imported inside the hooks."""

from __future__ import annotations

from typing import Any

from erniecore.api import Encoder, Objective, Plugin, Tokenizer, hookimpl


class GrpoPlugin(Plugin):
    """Group-relative policy optimisation with verifiable rewards."""

    kind, name = "method", "grpo"
    summary = "Group-relative policy optimisation with verifiable rewards"

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """The loss."""
        raise NotImplementedError

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Records to samples."""
        raise NotImplementedError


class UpoPlugin(Plugin):
    """Unified preference optimisation: clipped policy gradient and preferences."""

    kind, name = "method", "upo"
    summary = "Unified preference optimisation: clipped policy gradient and preferences"

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """The loss."""
        raise NotImplementedError

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Records to samples."""
        raise NotImplementedError


grpo, upo = GrpoPlugin(), UpoPlugin()
