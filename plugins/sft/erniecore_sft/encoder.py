"""Conversations to training samples: what the model reads, and which tokens it learns.

The prompt part of every learned turn has exactly the tokens that the model gets in use; that is checked. Where one
rendering of the whole conversation keeps this promise, it is one sample; where it does not (templates that drop the
reasoning of earlier turns), every learned turn is a sample of its own. No paddle; works with any ``ChatTemplate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from erniecore.api import (
    IGNORE,
    Conversation,
    EnvironmentFault,
    Json,
    Message,
    Record,
    RowError,
    Sample,
    Segment,
    Tokenizer,
)

NOTHING_LEARNED, TOO_LONG, NO_END_TOKEN, PROMPT_DIFFERS = "ERN-D043", "ERN-D044", "ERN-D046", "ERN-D047"
#: why a sample was shortened
EARLIER_TURNS, SYSTEM_TEXT, SOME_TURNS = "earlier turns left out", "system text left out", "a turn too long left out"


@dataclass(frozen=True)
class _Tokens:
    """ids, and which of them are learned as targets."""

    ids: list[int]
    learned: list[bool]


class SftEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: tokens of a sample at most.

    Raises:
        EnvironmentFault: the tokenizer has no chat template, or lacks the template's end tokens.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
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
        self.tokenizer, self.template, self.max_length = tokenizer, template, max_length
        self._turn_end = tokenizer.special_tokens[template.turn_end]
        self._stop = tokenizer.special_tokens[template.stop]

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample, or one per learned turn; raises ``RowError`` when none of them fits or nothing is learned."""
        assert isinstance(record, Conversation)
        messages, tools = record.messages, record.tools
        learned = [i for i, m in enumerate(messages) if m.role == "assistant" and m.learn]
        if not learned:
            raise RowError(
                "no turn is learned", code=NOTHING_LEARNED, where="$", expected="an assistant turn with label 1"
            )
        segments = self.template.segments(messages, tools)
        if self._as_in_use(messages, tools, segments, learned):
            return [replace(self._fitting(messages, tools, segments), origin=record.origin)]
        return self._by_turn(record, learned)

    # ---- prompts as in use

    def _as_in_use(
        self, messages: Sequence[Message], tools: Sequence[Json], segments: Sequence[Segment], learned: Sequence[int]
    ) -> bool:
        """Whether what stands before each learned turn is what the model is given in use."""
        for turn in learned:
            first = next((i for i, s in enumerate(segments) if s.generated and s.message == turn), -1)
            if first < 0:
                return False
            before = "".join(s.text for s in segments[:first])
            if not self.template.render(messages[:turn], tools, add_generation_prompt=True).startswith(before):
                return False
        return True

    def _by_turn(self, record: Conversation, learned: Sequence[int]) -> list[Sample]:
        samples: list[Sample] = []
        too_long: RowError | None = None
        for turn in learned:
            messages = [replace(m, learn=False) for m in record.messages[:turn]] + [record.messages[turn]]
            try:
                samples.append(replace(self._one_turn(messages, record.tools), origin=record.origin))
            except RowError as e:
                if e.code != TOO_LONG:
                    raise
                too_long = e
        if too_long is not None:
            if not samples:
                raise too_long
            samples[0] = replace(samples[0], truncated=samples[0].truncated or SOME_TURNS)
        return samples

    def _one_turn(self, messages: Sequence[Message], tools: Sequence[Json]) -> Sample:
        """The last message as an answer to what the model is given in use."""
        turn = len(messages) - 1
        for history in (messages, _without_old_reasoning(messages)):
            segments = self.template.segments(history, tools)
            if self._as_in_use(history, tools, segments, [turn]):
                return self._fitting(history, tools, segments)
        raise RowError(
            "the chat template renders this turn's prompt differently in training and in use",
            code=PROMPT_DIFFERS,
            where=f"$.messages[{turn}]",
            expected="a template whose prompt for a turn begins its rendering of that turn",
        )

    # ---- length

    def _fitting(self, messages: Sequence[Message], tools: Sequence[Json], segments: Sequence[Segment]) -> Sample:
        """The sample, shortened by whole turns from the left until it fits."""
        tokens = self._tokens(messages, segments)
        if len(tokens.ids) <= self.max_length + 1:
            return self._sample(tokens, "")
        for shorter, why in _shortened(messages):
            if not any(m.learn for m in shorter if m.role == "assistant"):
                break
            tokens = self._tokens(shorter, self.template.segments(shorter, tools))
            if len(tokens.ids) <= self.max_length + 1:
                return self._sample(tokens, why)
        raise RowError(
            "the last turn alone is too long",
            code=TOO_LONG,
            where="$",
            found=f"{len(tokens.ids) - 1} tokens",
            expected=f"at most {self.max_length} (data.max_seq_len)",
            fix="raise data.max_seq_len, or split the row",
        )

    # ---- tokens

    def _tokens(self, messages: Sequence[Message], segments: Sequence[Segment]) -> _Tokens:
        """Ids up to the last learned one. Every learned turn ends with the end token, or there would be no stopping."""
        ids: list[int] = []
        learned: list[bool] = []
        ends: dict[int, int] = {}
        for segment, pieces in zip(segments, self.tokenizer.encode_segments(segments), strict=True):
            learn = segment.generated and messages[segment.message].learn
            ids += pieces
            learned += [learn] * len(pieces)
            if learn and pieces:
                ends[segment.message] = pieces[-1]
        for turn, last in ends.items():
            if last != self._turn_end:
                raise RowError(
                    "a learned turn does not end with the end token",
                    code=NO_END_TOKEN,
                    where=f"$.messages[{turn}]",
                    found=repr(self.tokenizer.decode([last], skip_special=False)),
                    expected=self.template.turn_end,
                )
        length = max((i + 1 for i, x in enumerate(learned) if x), default=0)
        return _Tokens(ids[:length], learned[:length])

    def _sample(self, tokens: _Tokens, truncated: str) -> Sample:
        """Inputs and shifted labels; as a target, the end of a turn is the token to stop with."""
        ids = np.asarray(tokens.ids, np.int64)
        labels = np.where(np.asarray(tokens.learned), np.where(ids == self._turn_end, self._stop, ids), IGNORE)
        n = len(ids) - 1
        return Sample(
            input_ids=ids[:-1],
            labels=labels[1:],
            position_ids=np.arange(n, dtype=np.int64),
            end_rows=np.full(n, n, np.int32),
            truncated=truncated,
        )


def _without_old_reasoning(messages: Sequence[Message]) -> list[Message]:
    """As templates see a history in use: reasoning only behind the last question."""
    question = max((i for i, m in enumerate(messages[:-1]) if m.role == "user"), default=0)
    return [replace(m, reasoning="") if i < question else m for i, m in enumerate(messages)]


def _shortened(messages: Sequence[Message]) -> list[tuple[list[Message], str]]:
    """Ever shorter conversations: without the first turn, the first two, …, then without the system text too.

    A turn begins with a user's message and holds the answers, calls and tool results behind it."""
    system = [m for m in messages[:1] if m.role == "system"]
    starts = [i for i, m in enumerate(messages) if m.role == "user"]
    out = [([*system, *messages[start:]], EARLIER_TURNS) for start in starts[1:]]
    if system and starts:
        out.append((list(messages[starts[-1] :]), SYSTEM_TEXT))
    return out
