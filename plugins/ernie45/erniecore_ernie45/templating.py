"""Which chat template a tokenizer directory gets. The templates are jinja files beside this module; rendering them is
the core's work."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import ConfigError, JinjaChatTemplate, nearest

if TYPE_CHECKING:
    from erniecore.api import ChatTemplate

#: name -> (token that ends a turn inside a conversation, token that the model stops with)
TEMPLATES: dict[str, tuple[str, str]] = {
    "ernie45": ("<|end_of_sentence|>", "</s>"),
    "thinking": ("<|im_end|>", "<|im_end|>"),
}


def builtin_source(name: str) -> str:
    """Text of a template of ``TEMPLATES``."""
    return (resources.files("erniecore_ernie45") / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def choose_template(choice: str, directory: Path) -> ChatTemplate:
    """The template that ``model.template`` names, or the one that fits the tokenizer in ``directory``.

    A foreign jinja file ends its turns like the built-in template whose tokens it mentions.
    Raises ``ConfigError`` for a name that is neither a template nor a file.
    """
    if choice in TEMPLATES:
        return _template(builtin_source(choice), choice)
    own = Path(choice) if choice else directory / "chat_template.jinja"
    if own.is_file():
        source = own.read_text(encoding="utf-8")
        return _template(source, _family(source))
    if choice:
        close = nearest(choice, TEMPLATES)
        hint = f"did you mean {close}?" if close else f"templates: {', '.join(TEMPLATES)}"
        raise ConfigError.at("model.template", f"no template and no file is called {choice!r}; {hint}")
    name = _family(_tokenizer_settings(directory))
    return _template(builtin_source(name), name)


def _template(source: str, family: str) -> ChatTemplate:
    turn_end, stop = TEMPLATES[family]
    template: ChatTemplate = JinjaChatTemplate(source, turn_end=turn_end, stop=stop)
    return template


def _family(text: str) -> str:
    return "thinking" if "<|im_start|>" in text else "ernie45"


def _tokenizer_settings(directory: Path) -> str:
    """The JSON files in which a tokenizer lists its control tokens, with every escape resolved."""
    names = ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
    files = [directory / name for name in names if (directory / name).is_file()]
    return "\n".join(json.dumps(json.loads(file.read_text(encoding="utf-8")), ensure_ascii=False) for file in files)
