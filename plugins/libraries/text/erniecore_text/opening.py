"""The tokenizer that a directory holds, with a model or alone. For commands that read texts."""

from __future__ import annotations

from pathlib import Path

from erniecore.api.command import open_tokenizer as open_models_tokenizer
from erniecore.api.model import Tokenizer
from erniecore_text.tokenizer import SentencePieceTokenizer


def open_tokenizer(directory: Path) -> tuple[Tokenizer, int]:
    """The tokenizer of a model directory as its model plugin reads it, or that of a directory with a tokenizer alone; and the
    model's vocabulary size (0: no model).

    Raises:
        ErnieError: there is no tokenizer, or nobody reads this model.
    """
    if not (directory / "config.json").is_file() and (directory / "tokenizer.model").is_file():
        return SentencePieceTokenizer.from_directory(directory), 0
    return open_models_tokenizer(directory)
