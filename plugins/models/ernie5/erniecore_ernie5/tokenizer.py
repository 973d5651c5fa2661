"""The tokenizer of a model of text, images and audio: that of text, which also knows how images and audio become tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore_ernie45.templating import choose_template
from erniecore_text import SentencePieceTokenizer

from erniecore.api import ConfigError
from erniecore_ernie5.architecture import MARKERS, Ernie5Architecture
from erniecore_ernie5.sequence import Markers, MediaTokens


class Ernie5Tokenizer(SentencePieceTokenizer):
    """See ``erniecore.api.model.Tokenizer``.

    Attributes:
        media: how images and audio become tokens.
    """

    media: MediaTokens

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.model, self.files, self.chat_template, self.media)


def _restored(model: Any, files: Any, chat_template: Any, media: MediaTokens) -> Ernie5Tokenizer:
    tokenizer = Ernie5Tokenizer(model, files, chat_template)
    tokenizer.media = media
    return tokenizer


def read_tokenizer(directory: Path, template: str, arch: Ernie5Architecture) -> Ernie5Tokenizer:
    """The tokenizer in ``directory``.

    Raises:
        EnvironmentFault: there is none. ConfigError: it lacks a special token that config.json names.
    """
    tokenizer = Ernie5Tokenizer.from_directory(directory, choose_template(template, directory))
    assert isinstance(tokenizer, Ernie5Tokenizer)
    ids = []
    for key in MARKERS:
        name = arch.markers[key]
        if name not in tokenizer.special_tokens:
            known = ", ".join(list(tokenizer.special_tokens)[:16])
            raise ConfigError.at(f"model.architecture.{key}", f"the tokenizer has no special token {name!r}: {known}")
        ids.append(tokenizer.special_tokens[name])
    tokenizer.media = MediaTokens(arch.image, arch.audio, Markers(*ids))
    return tokenizer
