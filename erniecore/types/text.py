"""Tokenizer and chat template: the contract between rendering, training and generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from erniecore.types.records import Json, Message


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a rendered prompt.

    ``text`` with ``trusted`` true comes from the template, and special tokens in it become their ids;
    untrusted text comes from users and is always encoded as plain text. ``message`` is the index of the
    message that the segment belongs to (-1: none). ``generated`` marks what the model itself would write:
    an assistant message after its generation prompt, up to and including its end token.
    """

    text: str
    trusted: bool
    message: int = -1
    generated: bool = False


class ChatTemplate(Protocol):
    """Renders messages; the only renderer for training, chat and export. ``thinking``: whether the answer that is asked for
    begins with reasoning; ``None``: as the template has it when nobody says."""

    #: the jinja source, exported as ``chat_template.jinja``
    source: str
    #: token that ends an assistant turn inside a conversation (input side)
    turn_end: str
    #: token that the model learns to stop with (label side)
    stop: str

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
    ) -> str:
        """The prompt as one string. Raises ``RowError`` when the template refuses the conversation."""
        ...

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
    ) -> list[Segment]:
        """The same text in pieces; ``"".join(s.text for s in segments)`` equals ``render``.

        Raises ``RowError`` as ``render`` does, and when the template changes the text of a message."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    #: special tokens by their text
    special_tokens: Mapping[str, int]
    chat_template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Plain text; never yields a special token, whatever the text says."""
        ...

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Ids per segment. Adjacent segments form one run unless ``generated`` changes between them, so the
        ids of a prompt do not depend on how it was cut."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids; incomplete UTF-8 becomes U+FFFD."""
        ...

    def save(self, directory: Path) -> list[Path]:
        """Write the tokenizer files of the Hugging Face format; returns what was written."""
        ...
