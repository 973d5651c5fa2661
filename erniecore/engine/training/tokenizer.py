"""The tokenizer of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.errors import ConfigError
from erniecore.types.text import Tokenizer

if TYPE_CHECKING:
    from erniecore.host import Host
    from erniecore.sections import ModelConfig


def build_tokenizer(host: Host, model: ModelConfig, vocab_size: int) -> Tokenizer:
    """From ``model.tokenizer``, else from ``model.path``.

    Raises:
        ConfigError: neither is set, or the tokenizer has more ids than the model.
    """
    directory = model.tokenizer or model.path
    if not directory:
        raise ConfigError.at("model.tokenizer", "no tokenizer: name its directory, or a model directory in model.path")
    tokenizer: Tokenizer = host.hook.ernie_build_tokenizer(config=model, directory=Path(directory))
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError.at(
            "model.tokenizer", f"the tokenizer has {tokenizer.vocab_size} ids, the model only {vocab_size} (vocab_size)"
        )
    return tokenizer
