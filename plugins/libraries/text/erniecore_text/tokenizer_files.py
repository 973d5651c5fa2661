"""The files of a tokenizer in the Hugging Face format: read, and written so that transformers and servers read the same.

``tokenizer.model``, ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json``, ``added_tokens.json``
(only when tokens lie outside of the model) and ``chat_template.jinja``. Remote code named in a configuration is never
run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, DataError, EnvironmentFault, Json, shorten
from erniecore.api.data import Message
from erniecore.api.files import check_links, read_bytes, read_object, read_text
from erniecore.api.model import ChatTemplate
from erniecore_text import tokenizer_json
from erniecore_text.template import JinjaChatTemplate

if TYPE_CHECKING:
    from erniecore_text.tokenizer import SentencePieceTokenizer

#: names in special_tokens_map.json and tokenizer_config.json
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
_MAX_LENGTH = 131072
#: bytes of a template
_MOST = 1 << 20


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files beside ``tokenizer.model`` say.

    Attributes:
        named: ``bos_token`` and so on -> text.
        added: text -> (id, or -1 when only the name is known; special).
        max_length: ``model_max_length``.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    max_length: int = _MAX_LENGTH

    def resolve(self, pieces: Mapping[str, int]) -> dict[str, tuple[int, bool]]:
        """The listed tokens with their ids. Raises ``EnvironmentFault`` for one that has no id anywhere, or two."""
        out = {}
        for text, (listed, special) in self.added.items():
            own = pieces.get(text, -1)
            if listed < 0 and own < 0:
                raise EnvironmentFault(
                    "a listed token has no id", where="tokenizer_config.json", found=shorten(text), expected="an id"
                )
            if own >= 0 and listed >= 0 and own != listed:
                raise EnvironmentFault(
                    "a token has two ids", where="tokenizer.model, added tokens", found=f"{text!r}: {own} and {listed}"
                )
            out[text] = (own if own >= 0 else listed, special)
        return out


def open_model(model: bytes, where: str = "tokenizer.model") -> Any:
    """A ``SentencePieceProcessor``; raises ``EnvironmentFault`` for bytes that are no model."""
    import sentencepiece

    try:
        found = sentencepiece.SentencePieceProcessor(model_proto=model)
        if model and found.get_piece_size():
            return found
    except (RuntimeError, ValueError, TypeError):
        pass
    raise EnvironmentFault("this is no SentencePiece model", where=where, found=f"{len(model)} bytes")


def read(directory: Path) -> tuple[bytes, TokenizerFiles]:
    """Model bytes and companions of a directory. Raises ``EnvironmentFault``."""
    check_links(directory, CheckpointError)
    path = directory / "tokenizer.model"
    if not path.is_file():
        raise EnvironmentFault(
            "no tokenizer here",
            where=str(path),
            expected="a SentencePiece model",
            fix="name a model directory, or train one",
            next=f"ernie tokenizer train FILE --out {directory}",
        )
    try:
        model = read_bytes(path)
    except OSError as e:
        raise EnvironmentFault("the tokenizer cannot be read", where=str(path), found=e.strerror or "") from e
    open_model(model, str(path))
    try:
        return model, _listed(directory)
    except (TypeError, ValueError, AttributeError, KeyError) as e:
        raise EnvironmentFault(
            "the files beside tokenizer.model list tokens in another form",
            where=str(directory),
            found=shorten(f"{type(e).__name__}: {e}"),
            expected="tokens as text or objects with `content`, ids as whole numbers",
            fix="fetch tokenizer_config.json, special_tokens_map.json and added_tokens.json again",
        ) from e


def _listed(directory: Path) -> TokenizerFiles:
    """What the files beside the model say. Raises ``TypeError`` and the like for values of another form."""
    settings, special = _json(directory / "tokenizer_config.json"), _json(directory / "special_tokens_map.json")
    named = {n: _text(v) for n in _NAMED for v in (settings.get(n, special.get(n)),) if v}
    added: dict[str, tuple[int, bool]] = dict.fromkeys(named.values(), (-1, True))
    for source in (special, settings):
        for value in source.get("additional_special_tokens") or ():
            added[_text(value)] = (-1, True)
    for text, token in _json(directory / "added_tokens.json").items():
        added[text] = (_id(token), _looks_special(text))
    for token, entry in (settings.get("added_tokens_decoder") or {}).items():
        text = _text(entry)
        added[text] = (_id(token), bool(entry.get("special")) or _looks_special(text))
    length = settings.get("model_max_length")
    length = int(length) if isinstance(length, int | float) and 0 < length < 2**31 else _MAX_LENGTH
    return TokenizerFiles(named, added, length)


def _id(value: Any) -> int:
    token = int(value)
    if not 0 <= token < 2**31:
        raise ValueError(f"the id {token}")
    return token


def read_template(directory: Path, files: TokenizerFiles) -> ChatTemplate | None:
    """The template file of the directory, or the one inside of tokenizer_config.json, or none."""
    path = directory / "chat_template.jinja"
    try:
        source = read_text(path, _MOST) if os.path.isfile(path) else None
    except (OSError, ValueError) as e:
        raise DataError("the chat template cannot be read", where=str(path), found=str(e)) from e
    if not source:
        path = directory / "tokenizer_config.json"
        source = _json(path).get("chat_template")
    if not isinstance(source, str) or not source:
        return None
    variables = dict(files.named)
    ending = _turn_end(JinjaChatTemplate(source, variables=variables, file=str(path)))
    stop = files.named.get("eos_token", "</s>") if ending == "<|end_of_sentence|>" else ending
    return JinjaChatTemplate(source, ending, stop, variables, str(path))


def _turn_end(template: JinjaChatTemplate) -> str:
    """What the template writes behind a completion, without whitespace: its last tag."""
    probe = "probe" * 3
    messages = (Message("user", "question"), Message("assistant", probe))
    rest = template.render(messages, add_generation_prompt=False).rpartition(probe)[2].strip()
    return rest[rest.rindex("<") :] if "<" in rest else rest


def _looks_special(text: str) -> bool:
    """Tags steer the model even where a file does not call them special, so users may not write them."""
    return len(text) > 2 and text.startswith("<") and text.endswith(">")


def _text(value: Any) -> str:
    text = value["content"] if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TypeError(f"a token that is no text: {text!r}")
    return text


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, EnvironmentFault) if path.is_file() else {}


def write(tokenizer: SentencePieceTokenizer, directory: Path) -> list[Path]:
    """Write all files; returns their paths, sorted."""
    named = _names(tokenizer)
    named_texts = set(named.values())
    extra = [t for t in tokenizer.special_tokens if t not in named_texts]
    template = tokenizer.chat_template
    settings: dict[str, Any] = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "legacy": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": tokenizer.files.max_length,
        "padding_side": "right",
        **named,
        "additional_special_tokens": extra,
        "added_tokens_decoder": _decoder(tokenizer),
    }
    if template is not None:
        settings["chat_template"] = template.source
    texts = {
        "tokenizer_config.json": _dump(settings),
        "special_tokens_map.json": _dump({**named, "additional_special_tokens": extra}),
    }
    model = open_model(tokenizer.model)
    size = model.get_piece_size()
    expressed = tokenizer_json.express(model, {int(i): entry for i, entry in settings["added_tokens_decoder"].items()})
    if expressed is not None:
        texts["tokenizer.json"] = expressed
    outside = {t: i for t, i in (*tokenizer.special_tokens.items(), *tokenizer.plain_tokens.items()) if i >= size}
    if outside:
        texts["added_tokens.json"] = _dump(outside)
    if template is not None:
        texts["chat_template.jinja"] = template.source
    _replace(directory, {"tokenizer.model": tokenizer.model, **{name: text.encode() for name, text in texts.items()}})
    return sorted(directory / name for name in ("tokenizer.model", *texts))


def _replace(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write all files beside their places first: on a full disk the old ones stay, and no directory is left behind."""
    new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    temporary = {name: directory / f".{name}.tmp" for name in contents}
    try:
        for name, content in contents.items():
            temporary[name].write_bytes(content)
        for name, path in temporary.items():
            path.replace(directory / name)
    except OSError:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        if new:
            directory.rmdir()
        raise


def _names(tokenizer: SentencePieceTokenizer) -> dict[str, str]:
    by_id = {i: t for t, i in tokenizer.special_tokens.items()}
    model = open_model(tokenizer.model)
    named = {
        "bos_token": by_id.get(tokenizer.bos_id),
        "eos_token": by_id.get(tokenizer.eos_id),
        "unk_token": by_id.get(model.unk_id()),
        "pad_token": by_id.get(tokenizer.pad_id),
    }
    usual = {"cls_token": "<|begin_of_sentence|>", "sep_token": "<|end_of_sentence|>", "mask_token": "<mask:1>"}
    named.update({n: t for n, t in usual.items() if t in tokenizer.special_tokens})
    named.update(tokenizer.files.named)
    return {n: t for n, t in named.items() if t}


def _decoder(tokenizer: SentencePieceTokenizer) -> dict[str, Json]:
    tokens = [(i, t, True) for t, i in tokenizer.special_tokens.items()]
    tokens += [(i, t, False) for t, i in tokenizer.plain_tokens.items()]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {str(i): {"content": t, **flags, "special": special} for i, t, special in sorted(tokens)}


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
