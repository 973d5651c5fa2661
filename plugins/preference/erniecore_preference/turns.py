"""A prompt and an answer behind it as tokens: what the model is given, and what it writes. One answer may span several
turns. The prompt has exactly the tokens that the model gets in use; that is checked. numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from erniecore.api import IGNORE, EnvironmentFault, Json, Message, RowError, Segment, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids: TypeAlias = NDArray[np.int64]

NOTHING_LEARNED, TOO_LONG, NO_END_TOKEN, PROMPT_DIFFERS = "ERN-D043", "ERN-D044", "ERN-D046", "ERN-D047"
#: why a sample was shortened
EARLIER_TURNS, SYSTEM_TEXT = "earlier turns left out", "system text left out"


@dataclass(frozen=True)
class Answer:
    """Ids of the prompt, ids of the answer, and which of the latter are learned as targets."""

    prompt: list[int]
    ids: list[int]
    learned: list[bool]

    @property
    def size(self) -> int:
        """Input positions of both: the last token is only a target."""
        return len(self.prompt) + len(self.ids) - 1


class Turns:
    """Renders with the tokenizer's chat template.

    Raises:
        EnvironmentFault: the tokenizer has no chat template, or lacks the template's end tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        template = tokenizer.chat_template
        if template is None:
            raise EnvironmentFault(
                "the tokenizer has no chat template",
                where="model.tokenizer",
                fix="add chat_template.jinja to the model directory, or set model.template",
            )
        for token in (template.turn_end, template.stop):
            if token not in tokenizer.special_tokens:
                raise EnvironmentFault(
                    "the tokenizer lacks a token of the chat template", found=token, expected="a control token"
                )
        self.tokenizer, self.template = tokenizer, template
        self.turn_end = tokenizer.special_tokens[template.turn_end]
        self.stop = tokenizer.special_tokens[template.stop]

    def answer(self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str) -> Answer:
        """``turns`` behind ``prompt``; every assistant turn of ``turns`` is learned unless its ``learn`` is false.

        Args:
            where: JSON path for errors.
        Raises:
            RowError: no turn is learned, one lacks its end token, or would have another prompt in use.
        """
        first = len(prompt)
        learned = [first + i for i, m in enumerate(turns) if m.role == "assistant" and m.learn]
        if not learned:
            raise RowError("no turn is learned", code=NOTHING_LEARNED, where=where, expected="an assistant's turn")
        for history in (prompt, _without_reasoning(prompt)):
            segments = self.template.segments([*history, *turns], tools)
            if self._as_in_use([*history, *turns], tools, segments, learned):
                return self._tokens(segments, first, frozenset(learned), where)
        raise RowError(
            "the chat template renders this answer's prompt differently in training and in use",
            code=PROMPT_DIFFERS,
            where=where,
            expected="a template whose prompt for a turn begins its rendering of that turn",
        )

    def _as_in_use(
        self, messages: Sequence[Message], tools: Sequence[Json], segments: Sequence[Segment], learned: Sequence[int]
    ) -> bool:
        """Whether what stands before each learned turn is what the model is given in use."""
        for turn in learned:
            start = next((i for i, s in enumerate(segments) if s.generated and s.message == turn), -1)
            before = "".join(s.text for s in segments[: max(start, 0)])
            in_use = self.template.render(messages[:turn], tools, add_generation_prompt=True)
            if start < 0 or not in_use.startswith(before):
                return False
        return True

    def _tokens(self, segments: Sequence[Segment], first: int, learned: frozenset[int], where: str) -> Answer:
        """Cut where the first learned turn begins, up to the end of the last one."""
        ids: list[int] = []
        targets: list[bool] = []
        ends: dict[int, int] = {}
        for segment, pieces in zip(segments, self.tokenizer.encode_segments(segments), strict=True):
            learn = segment.generated and segment.message in learned
            ids += pieces
            targets += [learn] * len(pieces)
            if learn and pieces:
                ends[segment.message] = pieces[-1]
        for turn, last in ends.items():
            if last != self.turn_end:
                raise RowError(
                    "a learned turn does not end with the end token",
                    code=NO_END_TOKEN,
                    where=f"{where}[{turn - first}]",
                    found=repr(self.tokenizer.decode([last], skip_special=False)),
                    expected=self.template.turn_end,
                )
        start, end = targets.index(True), len(targets) - targets[::-1].index(True)
        return Answer(ids[:start], ids[start:end], targets[start:end])

    def arrays(self, answer: Answer) -> tuple[Ids, Ids]:
        """(input ids, labels) of prompt and answer; as a target, the end of a turn is the token to stop with."""
        ids = np.asarray([*answer.prompt, *answer.ids], np.int64)
        learned = np.asarray([False] * len(answer.prompt) + answer.learned)
        labels = np.where(learned, np.where(ids == self.turn_end, self.stop, ids), IGNORE)
        return ids[:-1], labels[1:]


def _without_reasoning(messages: Sequence[Message]) -> list[Message]:
    """As templates see a history in use: reasoning only behind the last question."""
    question = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    return [replace(m, reasoning="") if i < question else m for i, m in enumerate(messages)]


def shortened(prompt: Sequence[Message]) -> Iterator[tuple[Sequence[Message], str]]:
    """The prompt, then ever shorter ones with the reason: without the first turn, the first two, …, and at last without
    the system text. A turn begins with a user's message and holds the answers, calls and results behind it."""
    yield prompt, ""
    system = [m for m in prompt[:1] if m.role == "system"]
    starts = [i for i, m in enumerate(prompt) if m.role == "user"]
    for start in starts[1:]:
        yield [*system, *prompt[start:]], EARLIER_TURNS
    if system and starts:
        yield prompt[starts[-1] :], SYSTEM_TEXT
