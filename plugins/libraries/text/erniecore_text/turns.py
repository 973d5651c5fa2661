"""Turns of conversations as tokens: what the model is given, and what it learns to write. One answer may span several
turns. A learned turn stands behind exactly the tokens that the model gets in use (``in_use.py``). numpy only; what a
method makes of the tokens is its own matter.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api import EnvironmentFault, Json, RowError
from erniecore.api.data import Message, codes
from erniecore.api.method import IGNORE
from erniecore.api.model import Segment, Tokenizer
from erniecore_text.in_use import pieces, written_turn
from erniecore_text.template import MAX_SHAPES, JinjaChatTemplate
from erniecore_text.verbatim import RenderPlan, Shape, filled, plan_of, probe

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
        self._plans: dict[tuple[Shape, tuple[int, ...]], RenderPlan | None] = {}

    @staticmethod
    def learned(messages: Sequence[Message]) -> list[int]:
        """Indices of the assistant's messages that are to be learned."""
        return [i for i, m in enumerate(messages) if m.role == "assistant" and m.learn]

    def answer(self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str) -> Answer:
        """``turns`` behind ``prompt``; every assistant turn of ``turns`` is learned unless its ``learn`` is false.

        Args:
            where: JSON path for errors.
        Raises:
            RowError: no turn is learned, one of them cannot be told apart from its prompt (see ``written_turn``), or they
                cannot stand in one sequence.
        """
        answer = self.together([*(replace(m, learn=False) for m in prompt), *turns], tools, where, len(prompt))
        if answer is None:
            raise RowError(
                "the turns of this answer do not share a prompt: in use the chat template renders the earlier ones otherwise",
                code=codes.PROMPT_DIFFERS,
                where=where,
                expected="turns that look the same when they are written and when they are read again",
                fix="move all but the last turn into the prompt",
            )
        return answer

    def together(
        self, messages: Sequence[Message], tools: Sequence[Json], where: str, offset: int = 0
    ) -> Answer | None:
        """All learned turns in one sequence: the prompt of the last one and what is written behind it. ``None``: an earlier
        one does not stand in it as it is written, so that each needs a sequence of its own.

        Args:
            where, offset: JSON path for errors, and which message stands first there.
        Raises:
            RowError: no turn is learned, or ``written_turn`` refuses one.
        """
        learned = self.learned(messages)
        if not learned:
            raise RowError(
                "no turn is learned", code=codes.NOTHING_LEARNED, where=where, expected="an assistant's turn"
            )
        segments = self._sequence(messages, tools, learned, (where, offset))
        return None if segments is None else self._tokens(segments, frozenset(learned))

    def _sequence(
        self, messages: Sequence[Message], tools: Sequence[Json], learned: list[int], place: tuple[str, int]
    ) -> Sequence[Segment] | None:
        """The segments of :meth:`together`; made once for conversations that the template renders alike."""
        template = self.template
        shape = (
            template.shared_shape(messages[: learned[-1] + 1], tools)
            if isinstance(template, JinjaChatTemplate)
            else None
        )
        if shape is None:
            return self._made(messages, tools, learned, place)
        key = shape, tuple(learned)
        if key not in self._plans:
            self._made(messages, tools, learned, place)  # an error shows the row's own text
            if len(self._plans) >= MAX_SHAPES:
                self._plans.clear()
            like = probe(shape, secrets.token_hex(12))
            segments = self._made(like, tools, learned, place)
            self._plans[key] = None if segments is None else plan_of(segments, like)
        plan = self._plans[key]
        return None if plan is None else filled(plan, messages)

    def _made(
        self, messages: Sequence[Message], tools: Sequence[Json], learned: list[int], place: tuple[str, int]
    ) -> list[Segment] | None:
        where, offset = place
        turns = [written_turn(self.tokenizer, messages, i, tools, f"{where}[{i - offset}]") for i in learned]
        *earlier, last = turns
        whole = pieces(last.prompt) if earlier else []
        for turn in earlier:
            begin = pieces([*turn.prompt, *turn.completion])
            if whole[: len(begin)] != begin:
                return None
        return [*last.prompt, *last.completion]

    def _tokens(self, segments: Sequence[Segment], learned: frozenset[int]) -> Answer:
        """Cut where the first learned turn begins."""
        ids: list[int] = []
        targets: list[bool] = []
        for segment, part in zip(segments, self.tokenizer.encode_segments(segments), strict=True):
            ids += part
            targets += [segment.generated and segment.message in learned] * len(part)
        start = targets.index(True)
        return Answer(ids[:start], ids[start:], targets[start:])

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
