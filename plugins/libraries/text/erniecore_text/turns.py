"""Encodes the turns of conversations: prompt tokens and completion tokens. A completion may span several turns. Target turns
follow exactly the prompt tokens that the model gets at inference (``in_use.py``). numpy only; methods build samples from the
tokens.
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
from erniecore_text.in_use import pieces, tokens_differ, written_turn
from erniecore_text.template import MAX_SHAPES, JinjaChatTemplate
from erniecore_text.verbatim import SILENT, Ask, RenderPlan, Shape, filled, plan_of, probe

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]

#: what is rendered for the prompt of a turn; turns of a conversation of which renderings are expected
_PROMPT, _AHEAD = Ask(generation=True), 4
#: why a sample was shortened
EARLIER_TURNS, SYSTEM_TEXT = "earlier turns left out", "system text left out"


@dataclass(frozen=True)
class EncodedCompletion:
    """Token ids of the prompt and of the completion, and which completion tokens are targets of the loss."""

    prompt: list[int]
    ids: list[int]
    is_target: list[bool]

    @property
    def size(self) -> int:
        """Input positions of prompt and completion; the last token is only a target."""
        return len(self.prompt) + len(self.ids) - 1


class TurnEncoder:
    """Encodes conversations with the tokenizer's chat template.

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
                    "the tokenizer lacks a token of the chat template", found=token, expected="a special token"
                )
        self.tokenizer, self.template = tokenizer, template
        self.turn_end = tokenizer.special_tokens[template.turn_end]
        self.stop = tokenizer.special_tokens[template.stop]
        self._plans: dict[tuple[Shape, tuple[int, ...]], RenderPlan | None] = {}

    @staticmethod
    def target_turns(messages: Sequence[Message]) -> list[int]:
        """Indices of the assistant messages that are targets of the loss."""
        return [i for i, m in enumerate(messages) if m.role == "assistant" and m.learn]

    def expect(self, messages: Sequence[Message], tools: Sequence[Json]) -> None:
        """These turns are going to be encoded: the renderings that nearly every template needs for them are made meanwhile."""
        if isinstance(self.template, JinjaChatTemplate):
            for turn in self.target_turns(messages)[:_AHEAD]:
                self.template.expect(messages[:turn], tools, _PROMPT)
                self.template.expect(messages[: turn + 1], tools, SILENT)

    def encode_completion(
        self, prompt: Sequence[Message], turns: Sequence[Message], tools: Sequence[Json], where: str
    ) -> EncodedCompletion:
        """Encode ``turns`` as the completion of ``prompt``; all assistant turns with ``learn`` are targets.

        Args:
            where: JSON path for errors.
        Raises:
            RowError: no turn is a target, a turn cannot be separated from its prompt (see ``written_turn``), or the turns do
                not fit into one sequence.
        """
        completion = self.encode_turns([*(replace(m, learn=False) for m in prompt), *turns], tools, where, len(prompt))
        if completion is None:
            raise RowError(
                "the turns of this completion have different prompts: the chat template renders earlier turns differently",
                code=codes.PROMPT_DIFFERS,
                where=where,
                expected="turns that are rendered in the same way as the last turn and as earlier turns",
                fix="move all but the last turn into the prompt",
            )
        return completion

    def encode_turns(
        self, messages: Sequence[Message], tools: Sequence[Json], where: str, offset: int = 0
    ) -> EncodedCompletion | None:
        """Encode all target turns as one sequence: the prompt of the first one and everything after it. ``None`` if an earlier
        turn is rendered differently once others follow, so that each turn needs its own sequence.

        Args:
            where, offset: JSON path for errors, and the index in it of the first message.
        Raises:
            RowError: no turn is a target, or ``written_turn`` refuses one.
        """
        targets = self.target_turns(messages)
        if not targets:
            raise RowError(
                "no turn is a target of the loss", code=codes.NO_TARGETS, where=where, expected="an assistant turn"
            )
        segments = self._sequence(messages, tools, targets, (where, offset))
        return None if segments is None else self._tokens(segments, frozenset(targets), (where, offset))

    def _sequence(
        self, messages: Sequence[Message], tools: Sequence[Json], targets: list[int], place: tuple[str, int]
    ) -> Sequence[Segment] | None:
        """The segments of :meth:`encode_turns`; cached for conversations that the template renders in the same way."""
        template = self.template
        shape = (
            template.shared_shape(messages[: targets[-1] + 1], tools)
            if isinstance(template, JinjaChatTemplate)
            else None
        )
        if shape is None:
            return self._made(messages, tools, targets, place)
        key = shape, tuple(targets)
        if key not in self._plans:
            self._made(messages, tools, targets, place)  # an error shows the row's own text
            if len(self._plans) >= MAX_SHAPES:
                self._plans.clear()
            like = probe(shape, secrets.token_hex(12))
            segments = self._made(like, tools, targets, place)
            self._plans[key] = None if segments is None else plan_of(segments, like)
        plan = self._plans[key]
        return None if plan is None else filled(plan, messages)

    def _made(
        self, messages: Sequence[Message], tools: Sequence[Json], targets: list[int], place: tuple[str, int]
    ) -> list[Segment] | None:
        where, offset = place
        turns = [written_turn(self.tokenizer, messages, i, tools, f"{where}[{i - offset}]") for i in targets]
        *earlier, last = turns
        whole = pieces(last.prompt) if earlier else []
        for turn in earlier:
            begin = pieces([*turn.prompt, *turn.completion])
            if whole[: len(begin)] != begin:
                return None
        return [*last.prompt, *last.completion]

    def _tokens(
        self, segments: Sequence[Segment], targets: frozenset[int], place: tuple[str, int]
    ) -> EncodedCompletion:
        """The ids of the last target turn's prompt, encoded as in use, and of what the model writes behind it; split where
        the first target turn begins.

        Raises:
            RowError: an earlier target turn has other prompt tokens here than in use.
        """
        begins = {s.message: i for i, s in reversed([*enumerate(segments)]) if s.generated and s.message in targets}
        *earlier, last = sorted(begins.values())
        parts = self.tokenizer.encode_segments(segments[:last])
        for begin in earlier:
            self._compare(segments, parts, begin, place)
        parts += self.tokenizer.encode_segments(segments[last:])
        ids: list[int] = []
        is_target: list[bool] = []
        for segment, part in zip(segments, parts, strict=True):
            ids += part
            is_target += [segment.generated and segment.message in targets] * len(part)
        start = is_target.index(True)
        return EncodedCompletion(ids[:start], ids[start:], is_target[start:])

    def _compare(self, segments: Sequence[Segment], parts: list[list[int]], begin: int, place: tuple[str, int]) -> None:
        """Raise ``RowError`` if the prompt in front of ``begin`` has other tokens where a completion follows: the tokenizer
        joins the two. Earlier completions are the same in both, so only what stands behind them is encoded again."""
        behind = next((i + 1 for i in reversed(range(begin)) if segments[i].generated), 0)
        if self.tokenizer.encode_segments(segments[behind:begin]) == parts[behind:begin]:
            return
        where, offset = place
        served = [i for part in self.tokenizer.encode_segments(segments[:begin]) for i in part]
        trained = [i for part in parts for i in part]
        fix = "repair the tokenizer: it has to begin anew where the model begins to write (Segment.generated)"
        raise tokens_differ(self.tokenizer, served, trained, f"{where}[{segments[begin].message - offset}]", fix)

    def arrays(self, completion: EncodedCompletion) -> tuple[IntArray, IntArray]:
        """(input ids, labels) of prompt and completion; the label of the end of a turn is the stop token."""
        ids = np.array(completion.prompt + completion.ids, np.int64)
        start = len(completion.prompt)
        labels = np.full(len(ids), IGNORE, np.int64)
        labels[start:] = ids[start:]
        labels[labels == self.turn_end] = self.stop
        if not all(completion.is_target):
            labels[start:][~np.array(completion.is_target)] = IGNORE
        return ids[:-1], labels[1:]


def shortened(messages: Sequence[Message], most: int = 1 << 30) -> Iterator[tuple[Sequence[Message], str]]:
    """The messages, then shorter versions with the reason: without the first turn, the first two, …, and last without the system
    text. A turn is a user message with the assistant messages, tool calls and tool results after it.

    Args:
        most: turns that can fit at all, ``max_length`` of a sample; more are not tried, since every try encodes all of them.
    """
    system = [m for m in messages[:1] if m.role == "system"]
    starts = [i for i, m in enumerate(messages) if m.role == "user"]
    if len(starts) <= most:
        yield messages, ""
    for start in starts[1:][-most:]:
        yield [*system, *messages[start:]], EARLIER_TURNS
    if system and starts:
        yield messages[starts[-1] :], SYSTEM_TEXT
