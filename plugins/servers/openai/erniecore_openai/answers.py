"""Answers as OpenAI's clients read them: ids, usage, and the parts that both kinds of completions share."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from erniecore.api import Json

if TYPE_CHECKING:
    from erniecore_openai.generation import Piece


def new_id(prefix: str) -> str:
    """``chatcmpl-…``, ``cmpl-…`` or ``chatcmpl-tool-…``."""
    return f"{prefix}-{secrets.token_hex(16)}"


@dataclass(slots=True)
class Usage:
    """Tokens of one HTTP request. Prompts are counted once, whatever ``n`` is."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    seen: set[int] = field(default_factory=set)

    def add(self, piece: Piece, of_prompt: int, *, reasoning: bool = False) -> None:
        """Count a piece of a completion of prompt ``of_prompt``."""
        self.completion += len(piece.ids)
        self.reasoning += len(piece.ids) if reasoning else 0
        if piece.end is not None and of_prompt not in self.seen:
            self.seen.add(of_prompt)
            self.cached += piece.end.cached_tokens

    def json(self) -> Json:
        """Prompt and completion tokens as answers have them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def json(self, choices: list[Json], usage: Usage | None = None) -> Json:
        """An answer, or a chunk of one."""
        told: Json = {
            "id": self.id, "object": self.object, "created": self.created, "model": self.model, "choices": choices,
        }  # fmt: skip
        return told if usage is None else {**told, "usage": usage.json()}
