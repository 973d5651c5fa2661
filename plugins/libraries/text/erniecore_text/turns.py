"""Turns of conversations as tokens: what the model is given, and what it learns to write. One answer may span several
turns. The prompt of a learned turn has exactly the tokens that the model gets in use; that is checked. numpy only;
what a method makes of the tokens is its own matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from erniecore.api import EnvironmentFault, Json, RowError
from erniecore.api.data import Message, codes
from erniecore.api.method import IGNORE
from erniecore.api.model import Segment, Tokenizer

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]

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


class Rendered(NamedTuple):
    """Messages as the chat template writes them; ``learned``: indices of the messages to learn."""

    messages: Sequence[Message]
    segments: Sequence[Segment]
    learned: Collection[int]


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
                fix="name a model directory (`ernie model init` puts one in), add chat_template.jinja, or set model.template",
            )
        for token in (template.turn_end, template.stop):
            if token not in tokenizer.special_tokens:
                raise EnvironmentFault(
                    "the tokenizer lacks a token of the chat template", found=token, expected="a control token"
                )
        self.tokenizer, self.template = tokenizer, template
        self.turn_end = tokenizer.special_tokens[template.turn_end]
        self.stop = tokenizer.special_tokens[template.stop]

    @staticmethod
    def learned(messages: Sequence[Message]) -> list[int]:
        """Indices of the assistant's messages that are to be learned."""
        return [i for i, m in enumerate(messages) if m.role == "assistant" and m.learn]

    def answer(self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str) -> Answer:
        """``turns`` behind ``prompt``; every assistant turn of ``turns`` is learned unless its ``learn`` is false.

        Args:
            where: JSON path for errors.
        Raises:
            RowError: no turn is learned, one lacks its end token, or would have another prompt in use.
        """
        return self.tokens(self.as_given(prompt, turns, tools, where), where, len(prompt))

    def as_given(
        self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str
    ) -> Rendered:
        """Prompt and turns as the model is given them in use, if need be without the prompt's old reasoning.

        Raises:
            RowError: no turn is learned, or the template renders it differently in use.
        """
        learned = [len(prompt) + i for i in self.learned(turns)]
        if not learned:
            raise RowError(
                "no turn is learned", code=codes.NOTHING_LEARNED, where=where, expected="an assistant's turn"
            )
        for history in (prompt, _without_reasoning(prompt)):
            rendered = self.render([*history, *turns], tools, learned)
            if self.as_in_use(rendered, tools):
                return rendered
        raise RowError(
            "the chat template renders this answer's prompt differently in training and in use",
            code=codes.PROMPT_DIFFERS,
            where=where,
            expected="a template whose prompt for a turn begins its rendering of that turn",
        )

    def render(self, messages: Sequence[Message], tools: Sequence[Json], learned: Collection[int]) -> Rendered:
        """One rendering of all messages, not compared with anything."""
        return Rendered(messages, self.template.segments(messages, tools), learned)

    def as_in_use(self, rendered: Rendered, tools: Sequence[Json]) -> bool:
        """Whether what stands before each learned turn is what the model is given in use."""
        messages, segments, learned = rendered
        for turn in learned:
            first = next((i for i, s in enumerate(segments) if s.generated and s.message == turn), -1)
            if first < 0:
                return False
            before = "".join(s.text for s in segments[:first])
            if not self.template.render(messages[:turn], tools, add_generation_prompt=True).startswith(before):
                return False
        return True

    def tokens(self, rendered: Rendered, where: str, offset: int = 0) -> Answer:
        """Cut where the first learned turn begins, up to the end of the last one.

        Args:
            where, offset: JSON path for errors, and which message stands first there.
        Raises:
            RowError: a learned turn does not end with the end token, or there would be no stopping.
        """
        ids: list[int] = []
        targets: list[bool] = []
        ends: dict[int, int] = {}
        encoded = self.tokenizer.encode_segments(rendered.segments)
        for segment, pieces in zip(rendered.segments, encoded, strict=True):
            learn = segment.generated and segment.message in rendered.learned
            ids += pieces
            targets += [learn] * len(pieces)
            if learn and pieces:
                ends[segment.message] = pieces[-1]
        for turn, last in ends.items():
            if last != self.turn_end:
                raise RowError(
                    "a learned turn does not end with the end token",
                    code=codes.NO_END_TOKEN,
                    where=f"{where}[{turn - offset}]",
                    found=repr(self.tokenizer.decode([last], skip_special=False)),
                    expected=self.template.turn_end,
                )
        start, end = targets.index(True), len(targets) - targets[::-1].index(True)
        return Answer(ids[:start], ids[start:end], targets[start:end])

    def arrays(self, answer: Answer) -> tuple[IntArray, IntArray]:
        """(input ids, labels) of prompt and answer; as a target, the end of a turn is the token to stop with."""
        ids = np.array(answer.prompt + answer.ids, np.int64)
        start = len(answer.prompt)
        labels = np.full(len(ids), IGNORE, np.int64)
        labels[start:] = ids[start:]
        labels[labels == self.turn_end] = self.stop
        if not all(answer.learned):
            labels[start:][~np.array(answer.learned)] = IGNORE
        return ids[:-1], labels[1:]


def shortened(messages: Sequence[Message]) -> Iterator[tuple[Sequence[Message], str]]:
    """The messages, then ever fewer with the reason: without the first turn, the first two, …, and at last without the
    system text. A turn begins with a user's message and holds the answers, calls and results behind it."""
    yield messages, ""
    system = [m for m in messages[:1] if m.role == "system"]
    starts = [i for i, m in enumerate(messages) if m.role == "user"]
    for start in starts[1:]:
        yield [*system, *messages[start:]], EARLIER_TURNS
    if system and starts:
        yield messages[starts[-1] :], SYSTEM_TEXT


def _without_reasoning(messages: Sequence[Message]) -> list[Message]:
    """As templates see a history in use: reasoning only behind the last question."""
    question = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    return [replace(m, reasoning="") if i < question else m for i, m in enumerate(messages)]
