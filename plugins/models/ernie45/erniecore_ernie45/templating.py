"""Which chat template a tokenizer directory gets. The templates are jinja files beside this module; rendering them is
the core's work."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer

from erniecore.api import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from erniecore.api.model import ChatTemplate, Tokenizer

#: name -> (token that ends a turn inside a conversation, token that the model stops with)
TEMPLATES: dict[str, tuple[str, str]] = {
    "ernie45": ("<|end_of_sentence|>", "</s>"),
    "thinking": ("<|im_end|>", "<|im_end|>"),
}


def read_tokenizer(directory: Path, template: str) -> Tokenizer:
    """The SentencePiece tokenizer in ``directory`` with the chat template that :func:`choose_template` finds.

    Raises ``EnvironmentFault`` when the directory holds no tokenizer.
    """
    tokenizer: Tokenizer = SentencePieceTokenizer.from_directory(directory, choose_template(template, directory))
    return tokenizer


def builtin_source(name: str) -> str:
    """Text of a template of ``TEMPLATES``."""
    return (resources.files("erniecore_ernie45") / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def choose_template(choice: str, directory: Path) -> ChatTemplate:
    """The template that ``model.template`` names, else the directory's own, else ``ernie45``.

    A foreign template ends its turns like the built-in one whose tokens it mentions.
    Raises ``ConfigError`` for a name that is neither a template nor a file.
    """
    if choice in TEMPLATES:
        return _template(builtin_source(choice), choice)
    source = _source(Path(choice)) if choice else _own_source(directory)
    if source is not None:
        try:
            return _template(source, "thinking" if "<|im_start|>" in source else "ernie45")
        except DataError as error:
            error.where = f"{choice or directory}: {error.where}"
            raise
    if choice:
        close = nearest(choice, TEMPLATES)
        hint = f"did you mean {close}?" if close else f"templates: {', '.join(TEMPLATES)}"
        raise ConfigError.at("model.template", f"no template and no file is called {choice!r}; {hint}")
    return _template(builtin_source("ernie45"), "ernie45")


def _template(source: str, family: str) -> ChatTemplate:
    turn_end, stop = TEMPLATES[family]
    template: ChatTemplate = JinjaChatTemplate(source, turn_end=turn_end, stop=stop)
    return template


def _source(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _own_source(directory: Path) -> str | None:
    """The template of a model directory: a file of its own, or a key of tokenizer_config.json in older ones."""
    source = _source(directory / "chat_template.jinja")
    if source is None and (settings := _source(directory / "tokenizer_config.json")) is not None:
        source = json.loads(settings).get("chat_template")
    return source if isinstance(source, str) else None
