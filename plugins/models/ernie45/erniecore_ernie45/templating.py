"""Which chat template a tokenizer directory gets. The templates are jinja files beside the model plugins; rendering them is
``erniecore_text``'s work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer

from erniecore.api import ConfigError, DataError, EnvironmentFault, nearest
from erniecore.api.files import read_object, read_text

if TYPE_CHECKING:
    from erniecore.api.model import ChatTemplate, Tokenizer


#: bytes of a template
_MOST = 1 << 20


class BuiltIn(NamedTuple):
    """A template that a package brings in its folder ``templates``.

    Attributes:
        turn_end: token that ends a turn inside a conversation. stop: token that the model stops with.
    """

    package: str
    turn_end: str = "<|end_of_sentence|>"
    stop: str = "</s>"


#: of text models; a directory without one has the first
TEMPLATES: dict[str, BuiltIn] = {
    "ernie45": BuiltIn("erniecore_ernie45"),
    "thinking": BuiltIn("erniecore_ernie45", "<|im_end|>", "<|im_end|>"),
}


def read_tokenizer(directory: Path, template: str, known: Mapping[str, BuiltIn] = TEMPLATES) -> Tokenizer:
    """The SentencePiece tokenizer in ``directory`` with the chat template that :func:`choose_template` finds.

    Raises ``EnvironmentFault`` when the directory holds no tokenizer.
    """
    tokenizer: Tokenizer = SentencePieceTokenizer.from_directory(directory, choose_template(template, directory, known))
    return tokenizer


def builtin_source(name: str, known: Mapping[str, BuiltIn] = TEMPLATES) -> str:
    """Text of a template of ``known``."""
    return (resources.files(known[name].package) / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def choose_template(choice: str, directory: Path, known: Mapping[str, BuiltIn] = TEMPLATES) -> ChatTemplate:
    """The template that ``model.template`` names, else the directory's own, else the first of ``known``.

    A foreign template ends its turns like the built-in one whose tokens it mentions.
    Raises ``ConfigError`` for a name that is neither a template nor a file.
    """
    if choice in known:
        return _template(builtin_source(choice, known), known[choice], known)
    usual = next(iter(known))
    source = _source(Path(choice)) if choice else _own_source(directory)
    if source is not None:
        ends = TEMPLATES["thinking"] if "<|im_start|>" in source else known[usual]
        return _template(source, ends, known, choice or str(directory))
    if choice:
        close = nearest(choice, known)
        hint = f"did you mean {close}?" if close else f"templates: {', '.join(known)}"
        raise ConfigError.at("model.template", f"no template and no file is called {choice!r}; {hint}")
    return _template(builtin_source(usual, known), known[usual], known)


def _template(source: str, ends: BuiltIn, known: Mapping[str, BuiltIn], file: str = "") -> ChatTemplate:
    """Saved models have one of ours: it is recognized by its text, wherever it was read."""
    ours = any(source == builtin_source(name, known) for name in known)
    template: ChatTemplate = JinjaChatTemplate(source, turn_end=ends.turn_end, stop=ends.stop, file=file, trusted=ours)
    return template


def _source(file: Path) -> str | None:
    """Text of a template, if the file is there. Raises ``DataError`` for one that is none."""
    if not os.path.isfile(file):
        return None
    try:
        return read_text(file, _MOST)
    except (OSError, ValueError) as error:
        fix = "save it as UTF-8 text"
        raise DataError("the chat template cannot be read", where=str(file), found=str(error), fix=fix) from error


def _own_source(directory: Path) -> str | None:
    """The template of a model directory: a file of its own, or a key of tokenizer_config.json in older ones."""
    source = _source(directory / "chat_template.jinja")
    settings = directory / "tokenizer_config.json"
    if source is None and settings.is_file():
        source = read_object(settings, EnvironmentFault).get("chat_template")
    return source if isinstance(source, str) else None
