"""What ``ernie chat`` talks with: a model in this process or one behind an address, its adapters, and the tools it is offered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_generation import options as generation_options

from erniecore.api import UsageError
from erniecore.api.adapter import AdapterChoice
from erniecore.api.command import note, open_tokenizer
from erniecore.api.files import parse_json, read_bytes
from erniecore.api.run import load_adapter, named_directory
from erniecore_chat.remote import RemoteResponder

if TYPE_CHECKING:
    from erniecore_generation.respond import Responder

    from erniecore.api import Json
    from erniecore.api.method import Tokenizer


def remote_responder(
    url: str, model: Path | None, key_file: str, given: set[str], thinking: bool | None, local: Sequence[str]
) -> RemoteResponder:
    """What asks the server. Raises ``UsageError`` for ``local``: options that only a model in this process has."""
    from erniecore_serve.keys import api_key

    if local:
        raise UsageError("the server decides about this", where=", ".join(local), fix="leave it out with --url")
    name = "" if model is None else str(model)
    return RemoteResponder(url, name=name, key=api_key(key_file), given=given, thinking=thinking)


def local_responder(
    model: Path | None, device: str, *, adapters: Sequence[str], speculative: str, thinking: bool | None
) -> tuple[Responder, Any]:
    """What asks the model in a directory, and its generation_config.json. Raises ``UsageError``."""
    if model is None:
        raise UsageError("missing option '--model'", expected="--model DIR, or --url URL", next="ernie chat --help")
    bundle, tokenizer = generation_options.open_model(model, device, speculative=speculative)
    policy = add_adapters(bundle.model, adapters)
    if adapters:
        tokenizer = _tokenizer_of(model, [named_directory(option)[1] for option in adapters])
    from erniecore_generation.respond import Responder

    if tokenizer.chat_template is None:
        raise UsageError("this model has no chat template", next=f"ernie generate --raw --model {model} --prompt TEXT")
    found = Responder(policy, tokenizer, generation=bundle.generation, speculative=speculative, thinking=thinking)
    return found, bundle.generation


def read_tools(file: Path | None) -> tuple[Json, ...]:
    """The functions in a JSON file. Raises ``UsageError``."""
    if file is None:
        return ()
    try:
        found = parse_json(read_bytes(file))
    except (OSError, ValueError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else str(error)
        raise UsageError("cannot read the tools", where=str(file), found=why) from error
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        expected = 'a JSON list of {"type": "function", "function": {"name": …, "parameters": …}}'
        raise UsageError("these are no tools", where=str(file), found=type(found).__name__, expected=expected)
    return tuple(found)


def _tokenizer_of(model: Path, adapters: Sequence[Path]) -> Tokenizer:
    """That of the first adapter: with the chat template that it was trained with."""
    tokenizer, *others = (open_tokenizer(model, adapter)[0] for adapter in adapters)
    for adapter, other in zip(adapters[1:], others, strict=True):
        if _template_of(other) != _template_of(tokenizer):
            note(f"note: {adapter} was trained with another chat template than {adapters[0]}, whose template is used")
    return tokenizer


def _template_of(tokenizer: Tokenizer) -> str:
    return "" if tokenizer.chat_template is None else tokenizer.chat_template.source


def add_adapters(model: Any, options: Sequence[str]) -> Any:
    """``model`` with saved adapters, each given as ``[NAME=]DIR``; the first is active."""
    places = [named_directory(option) for option in options]
    for name, directory in places:
        model = load_adapter(model, directory, name)
    if len(places) > 1 and isinstance(model, AdapterChoice):
        model.set_adapter(places[0][0])
    return model
