"""The teacher that the settings name: its model, checked against the student, and what identifies its weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import ConfigError, UsageError
from erniecore.api.data import MediaReader
from erniecore.api.parallel import PackedLayer
from erniecore.api.run import open_model
from erniecore_distill.cache import Cache
from erniecore_distill.teachers import CachedTeacher, OnlineTeacher, Teacher

if TYPE_CHECKING:
    from erniecore.api.method import Tokenizer
    from erniecore.api.model import ModelBundle
    from erniecore_distill.config import DistillConfig

#: texts that both tokenizers must cut alike
_TEXTS = ("The quick brown fox, 1234567890.", "def f(x):\n\treturn x ** 2", "春眠不觉晓，处处闻啼鸟。 é ß 🙂")


def open_teacher(config: DistillConfig, policy: Any, tokenizer: Tokenizer) -> Teacher:
    """The teacher as the settings want it; a model is only opened when it is needed.

    Raises:
        ConfigError: no teacher, or one with another vocabulary. What ``open_model`` raises for a damaged one.
    """
    if not config.teacher:
        raise ConfigError.at("method.teacher", "name the model directory of the teacher")
    if not config.cache:
        bundle = checked_teacher(config, policy, tokenizer)
        images = bundle.tokenizer is not None and same_reading(tokenizer, bundle.tokenizer)
        return OnlineTeacher(bundle.model, top_k=config.top_k, temperature=config.temperature, images=images)
    facts = {
        "teacher": fingerprint(model_directory(config.teacher)),
        "dtype": dtype_of(policy),
        "top_k": config.top_k,
        "temperature": config.temperature,
        "vocab_size": vocabulary(policy),
        "format": 1,
    }
    template: Any = tokenizer.chat_template

    def opened() -> tuple[Any, bool]:
        bundle = checked_teacher(config, policy, tokenizer)
        return bundle.model, bundle.tokenizer is not None and same_reading(tokenizer, bundle.tokenizer)

    return CachedTeacher(
        Cache(Path(config.cache), facts),
        opened,
        top_k=config.top_k,
        temperature=config.temperature,
        reader=template if isinstance(template, MediaReader) else None,
    )


def same_reading(student: Tokenizer, teacher: Tokenizer) -> bool:
    """Whether images that were made for the student are what the teacher reads: both are of one family, and an image has the
    same patches for them."""
    one: Any = student.chat_template
    other: Any = teacher.chat_template
    return isinstance(one, MediaReader) and isinstance(other, MediaReader) and one.reads_as(other)


def checked_teacher(config: DistillConfig, policy: Any, tokenizer: Tokenizer) -> ModelBundle:
    """The teacher with its model, frozen, in the student's precision; see :func:`open_teacher`."""
    try:
        bundle = open_model(config.teacher, dtype=dtype_of(policy), device="")
    except UsageError as error:
        raise ConfigError.at("method.teacher", str(error)) from error
    for parameter in bundle.model.parameters():
        parameter.stop_gradient = True
    check_top_k(config, policy)
    if bundle.tokenizer is not None:
        check_tokenizers(tokenizer, bundle.tokenizer)
    same_size(bundle.model, policy)
    return bundle


def same_size(teacher: Any, policy: Any) -> Any:
    """``teacher``, if it has as many logits as the student. Raises ``ConfigError``."""
    if vocabulary(teacher) != vocabulary(policy):
        raise ConfigError.at(
            "method.teacher",
            f"the teacher has {vocabulary(teacher)} ids, the student {vocabulary(policy)}: distributions over the next "
            "token can only be compared over the same vocabulary",
        )
    return teacher


def check_top_k(config: DistillConfig, policy: Any) -> None:
    """Raise ``ConfigError`` where no other token would be left."""
    if config.top_k >= vocabulary(policy):
        raise ConfigError.at("method.top_k", f"the vocabulary has {vocabulary(policy)} ids; 0 compares all of them")


def check_tokenizers(student: Tokenizer, teacher: Tokenizer) -> None:
    """Raise ``ConfigError`` unless an id means the same for both."""
    ids = range(min(student.vocab_size, teacher.vocab_size))
    reason = ""
    if student.vocab_size != teacher.vocab_size:
        reason = f"{teacher.vocab_size} ids, the student's {student.vocab_size}"
    elif dict(student.special_tokens) != dict(teacher.special_tokens):
        reason = "other special tokens"
    elif any(student.encode(text) != teacher.encode(text) for text in _TEXTS):
        reason = "other ids for the same text"
    elif differing := [i for i in ids if student.decode([i]) != teacher.decode([i])]:
        reason = f"another text for id {differing[0]}"
    if reason:
        raise ConfigError.at("method.teacher", f"the teacher's tokenizer is not the student's: it has {reason}")


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """sha256 over what :func:`check_tokenizers` compares: alike where an id means the same."""
    known = [
        tokenizer.vocab_size,
        sorted(tokenizer.special_tokens.items()),
        [tokenizer.encode(text) for text in _TEXTS],
    ]
    total = hashlib.sha256(json.dumps(known).encode())
    for i in range(tokenizer.vocab_size):
        total.update(tokenizer.decode([i]).encode() + b"\0")
    return total.hexdigest()


def vocabulary(model: Any) -> int:
    """How many logits a ``CausalLM`` has."""
    return int(model.architecture["vocab_size"])


def dtype_of(model: Any) -> str:
    """The precision of a model's head, as a word; of a quantized one, that in which it computes."""
    packed = [layer.compute_dtype for layer in model.sublayers() if isinstance(layer, PackedLayer)]
    dtype = packed[0] if packed else model.head()[0].dtype
    return str(dtype).rpartition(".")[2]


def model_directory(path: str) -> Path:
    """Where the teacher's files are. Raises ``ConfigError`` for what is no finished model."""
    for directory in (Path(path), Path(path) / "model"):
        if (directory / "config.json").is_file():
            return directory
    raise ConfigError.at("method.teacher", f"with method.cache, name a model directory: {path} has no config.json")


def fingerprint(directory: Path) -> str:
    """sha256 over config.json and all weights of a model directory."""
    total = hashlib.sha256()
    for path in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        total.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                total.update(block)
    return total.hexdigest()
