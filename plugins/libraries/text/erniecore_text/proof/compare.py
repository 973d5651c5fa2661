"""Prompts of one side compared with those of training: the first token that differs, and what differs by design.

Two differences of transformers' tokens are known and counted instead: it encodes a history as one text, so the first word of an
earlier answer may join the space before it, and it takes the text of a special token for the token also in users' texts. Either
is only accepted where the same rendering, encoded in that way, gives exactly its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from erniecore.api import CheckpointError
from erniecore.api.model import Segment, Tokenizer
from erniecore_text.in_use import first_difference
from erniecore_text.proof.trained import TrainedPrompt, encoded

#: the error of a difference
CODE = "ERN-K031"


class Mismatch(NamedTuple):
    """One prompt that differs; ``found``: ids, or why there are none. ``side``: whose."""

    side: str
    prompt: TrainedPrompt
    found: Sequence[int] | str

    def error(self, tokenizer: Tokenizer, more: int, fix: str) -> CheckpointError:
        """The error that shows the first token that differs; ``more``: other prompts that differ."""
        found, expected = (
            (self.found, "the prompt that was trained")
            if isinstance(self.found, str)
            else first_difference(tokenizer, self.prompt.ids, self.found)
        )
        others = f" (and {more} more)" if more else ""
        return CheckpointError(
            f"the prompt of {self.side} is not the one that was trained{others}",
            where=self.prompt.where, found=found, expected=expected, fix=fix, code=CODE,
        )  # fmt: skip


@dataclass
class Report:
    """What was compared.

    Attributes:
        sides: names of who has the same prompts. rows, prompts: how many. refused: rows that the template cannot render.
        joined: prompts whose earlier answers transformers encodes with the text before them. special: prompts with the text
            of a special token in a user's message. mismatches: what differs. notes: what could not be compared.
    """

    rows: int = 0
    prompts: int = 0
    refused: int = 0
    joined: int = 0
    special: int = 0
    source: str = ""
    sides: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What the user is told, the result first."""
        told = [f"prompts: {note}" for note in self.notes]
        if self.refused:
            told.append(f"prompts: the template has no place for {self.refused} rows")
        if self.joined:
            told.append(f"prompts: {self.joined} have earlier answers whose first word others join with its space")
        if self.special:
            told.append(f"prompts: {self.special} have special tokens in users' texts, which others take for tokens")
        if len(self.sides) > 1:
            agree = ", ".join(self.sides)
            told.insert(0, f"prompts: the same tokens for {self.prompts} prompts of {self.source} in {agree}")
        return told


def compare(
    tokenizer: Tokenizer,
    side: str,
    prompts: Sequence[TrainedPrompt],
    found: Sequence[Sequence[int] | str],
    report: Report,
    *,
    as_text: bool = False,
) -> None:
    """Add to ``report`` what ``side`` has for ``prompts``. ``as_text``: it encodes the text of a conversation as a whole."""
    before = len(report.mismatches)
    for prompt, ids in zip(prompts, found, strict=True):
        if isinstance(ids, str) or tuple(ids) != prompt.ids:
            if as_text and not isinstance(ids, str) and _by_design(tokenizer, prompt, list(ids), report):
                continue
            report.mismatches.append(Mismatch(side, prompt, ids))
    if len(report.mismatches) == before:
        report.sides.append(side)


def _by_design(tokenizer: Tokenizer, prompt: TrainedPrompt, ids: list[int], report: Report) -> bool:
    if ids == encoded(tokenizer, [replace(segment, generated=False) for segment in prompt.segments]):
        report.joined += 1
        return True
    whole = "".join(segment.text for segment in prompt.segments)
    users = [segment.text for segment in prompt.segments if not segment.trusted]
    if not any(token in text for text in users for token in tokenizer.special_tokens):
        return False
    if ids == encoded(tokenizer, [Segment(whole, True)]):
        report.special += 1
        return True
    return False
