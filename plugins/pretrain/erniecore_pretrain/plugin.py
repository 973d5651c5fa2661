"""The plugin object of pretrain. What it builds is imported inside the hooks."""

from __future__ import annotations

from typing import Any

from erniecore.api import Encoder, Objective, Plugin, Tokenizer, hookimpl


class PretrainPlugin(Plugin):
    """Pre-training on documents and token files."""

    kind, name = "method", "pt"
    summary = "Pre-training on documents and token files"

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any) -> Objective:
        """The loss."""
        raise NotImplementedError

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """Records to samples."""
        raise NotImplementedError


plugin = PretrainPlugin()
