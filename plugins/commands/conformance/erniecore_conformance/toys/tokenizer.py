"""A byte-level tokenizer with a chat template: 4 special tokens and 256 bytes. Follows ``types/text.py`` to the
letter, needs no file, and can be sent to a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from erniecore.api import Json
from erniecore.api.data import Message
from erniecore.api.model import ChatTemplate, Segment

CONTROL = ("<pad>", "<s>", "</s>", "<|end_of_sentence|>")


class ToyTemplate:
    """The chat template ``<s>User: …\\nAssistant: …<|end_of_sentence|>``."""

    source = "{{ messages }}"
    turn_end = "<|end_of_sentence|>"
    stop = "</s>"

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
    ) -> str:
        """The text of all segments."""
        return "".join(s.text for s in self.segments(messages, tools, add_generation_prompt=add_generation_prompt))

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
    ) -> list[Segment]:
        """Trusted frame, untrusted contents; an assistant's content and its end are ``generated``. It has no thinking."""
        parts = [Segment("<s>", True)]
        for index, message in enumerate(messages):
            generated = message.role == "assistant"
            parts.append(Segment(f"{message.role.capitalize()}: ", True, index))
            parts.append(Segment(message.reasoning + message.content, False, index, generated))
            parts.append(Segment(self.turn_end if generated else "\n", True, index, generated))
        if add_generation_prompt:
            parts.append(Segment("Assistant: ", True))
        return [part for part in parts if part.text]


class ToyTokenizer:
    """Ids 0–3 are the special tokens, 4–259 the bytes of UTF-8."""

    vocab_size = len(CONTROL) + 256
    pad_id, bos_id, eos_id = 0, 1, 2
    special_tokens: Mapping[str, int] = {token: i for i, token in enumerate(CONTROL)}

    def __init__(self) -> None:
        self.chat_template: ChatTemplate | None = ToyTemplate()

    def encode(self, text: str) -> list[int]:
        """Bytes, shifted past the special tokens."""
        return [byte + len(CONTROL) for byte in text.encode()]

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Bytes do not merge, so every segment stands for itself."""
        return [self._trusted(s.text) if s.trusted else self.encode(s.text) for s in segments]

    def _trusted(self, text: str) -> list[int]:
        for token, index in self.special_tokens.items():
            before, found, after = text.partition(token)
            if found:
                return [*self._trusted(before), index, *self._trusted(after)]
        return self.encode(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """UTF-8 with replacement; special tokens as their text unless skipped."""
        parts = [bytes([i - len(CONTROL)]) if i >= len(CONTROL) else CONTROL[i].encode() for i in ids]
        kept = [part for part, i in zip(parts, ids, strict=True) if i >= len(CONTROL) or not skip_special]
        return b"".join(kept).decode(errors="replace")

    def save(self, directory: Path) -> list[Path]:
        """Write the file ``toy_tokenizer.json``."""
        path = directory / "toy_tokenizer.json"
        path.write_text(json.dumps({"control": CONTROL}), encoding="utf-8")
        return [path]
