"""Conversations to training samples: what the model reads, and which tokens it learns.

The prompt of every learned turn has exactly the tokens that the model gets in use. Where one sequence keeps this promise
for all of them, it is one sample; where it does not (templates that drop the reasoning of earlier turns), every learned
turn is a sample of its own. Rows that are too long are shortened as ``data.too_long`` says. No paddle; works with any
``ChatTemplate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from erniecore_text import LATER_TURNS, EncodedCompletion, TurnEncoder, beginning, cut_turn, shortened

from erniecore.api import Json, RowError
from erniecore.api.data import Conversation, MediaReader, Message
from erniecore.api.method import Record, Sample, Tokenizer

NO_TARGETS, TOO_LONG = "ERN-D043", "ERN-D044"
#: why a row gave fewer samples than it has learned turns
SOME_TURNS = "a turn too long left out"


class SftEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: tokens of a sample at most.
        too_long: what becomes of longer rows. ``drop``; ``turns``: without their earliest turns, texts stay whole;
            ``truncate``: without their last turns, and the first one that is learned cut.

    Raises:
        EnvironmentFault: the tokenizer has no chat template, or lacks the template's end tokens.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, too_long: str = "turns") -> None:
        self.turns, self.max_length, self.too_long = TurnEncoder(tokenizer), max_length, too_long
        template = self.turns.template
        self.media = template if isinstance(template, MediaReader) else None

    def expect(self, record: Record) -> None:
        """:meth:`encode` is going to be called for ``record``."""
        if isinstance(record, Conversation):
            self.turns.expect(record.messages, record.tools)

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample, or one per learned turn; raises ``RowError`` when none of them fits or nothing is learned."""
        assert isinstance(record, Conversation)
        targets = self.turns.target_turns(record.messages)
        if not targets:
            raise RowError(
                "no turn is a target of the loss", code=NO_TARGETS, where="$", expected="an assistant turn with label 1"
            )
        record = replace(record, messages=self._bounded(record.messages, targets[0]))
        targets = self.turns.target_turns(record.messages)
        completion = self.turns.encode_turns(record.messages, record.tools, "$.messages")
        if completion is None:
            return self._by_turn(record, targets)
        return [replace(self._fitting(completion, record.messages, record.tools), origin=record.origin)]

    def _bounded(self, messages: Sequence[Message], first: int) -> tuple[Message, ...]:
        """Without turns that cannot fit however short they are, since encoding takes longer the more there are: the result is
        the same. ``first``: the first target."""
        most = self.max_length + 1
        starts = [i for i, m in enumerate(messages) if m.role == "user"]
        if self.too_long == "truncate":
            behind = [i for i in starts if i > first]
            messages = messages[: behind[most]] if len(behind) > most else messages
            starts = [i for i in starts if i < first]
        if len(starts) <= most or self.too_long == "drop":
            return tuple(messages)
        system = [m for m in messages[:1] if m.role == "system"]
        return (*system, *messages[starts[-most] :])

    def _by_turn(self, record: Conversation, targets: Sequence[int]) -> list[Sample]:
        """Each learned turn as a completion to what the model is given in use."""
        samples: list[Sample] = []
        too_long: RowError | None = None
        for turn in targets:
            messages = [*(replace(m, learn=False) for m in record.messages[:turn]), record.messages[turn]]
            try:
                completion = self.turns.encode_turns(messages, record.tools, "$.messages")
                assert completion is not None  # one turn
                if samples and self.too_long == "truncate" and completion.size > self.max_length:
                    raise self._refused(completion.size)
                samples.append(replace(self._fitting(completion, messages, record.tools), origin=record.origin))
            except RowError as e:
                if e.code != TOO_LONG or self.too_long == "drop":
                    raise
                too_long = e
        if too_long is not None:
            if not samples:
                raise too_long
            samples[0] = replace(samples[0], truncated=samples[0].truncated or SOME_TURNS)
        return samples

    def _fitting(self, whole: EncodedCompletion, messages: Sequence[Message], tools: Sequence[Json]) -> Sample:
        """The sample, shortened until it fits. ``whole``: all ``messages``."""
        if whole.size <= self.max_length:
            return self._sample(whole, "", messages)
        if self.too_long == "truncate":
            return self._truncated(whole, messages, tools)
        size = whole.size
        for left, why in shortened(messages, self.max_length) if self.too_long == "turns" else ():
            if not self.turns.target_turns(left):
                break
            completion = self.turns.encode_turns(left, tools, "$.messages", len(left) - len(messages)) if why else whole
            size = completion.size if completion is not None else size
            if completion is not None and size <= self.max_length:
                return self._sample(completion, why, left)
        raise self._refused(size)

    def _truncated(self, whole: EncodedCompletion, messages: Sequence[Message], tools: Sequence[Json]) -> Sample:
        """Without the last turns as long as one is learned, then without those before it; then question or completion are cut,
        and only where that does not help the system text goes."""
        room, is_target = self.max_length + 1 - len(whole.prompt), [*whole.is_target, False]
        turn_ends = [i for i in range(1, len(is_target)) if is_target[i - 1] and not is_target[i]]
        end = max((end for end in turn_ends if end <= room), default=0)
        if end:  # what stands before a turn is the same without those behind it
            return self._sample(beginning(whole, end), LATER_TURNS, messages)
        first = self.turns.target_turns(messages)[0]
        ends = [i for i, m in enumerate(messages) if m.role == "user" and i > first]
        for left, why in shortened(messages[: ends[0] if ends else len(messages)], self.max_length):
            made = self._cut(left, tools)
            if made is not None:
                reasons = [LATER_TURNS if ends else "", why, made[1]]
                return self._sample(made[0], ", ".join(filter(None, reasons)), left)
        raise self._refused(whole.size)

    def _cut(self, messages: Sequence[Message], tools: Sequence[Json]) -> tuple[EncodedCompletion, str] | None:
        """The messages, if need be with a shorter question or completion; None where they do not fit, or have earlier turns."""
        start = self.turns.target_turns(messages)[0]

        def completed(prompt: Sequence[Message]) -> EncodedCompletion:
            return self.turns.encode_completion(prompt, messages[start:], tools, "$.messages")

        completion = completed(messages[:start])
        if completion.size <= self.max_length:
            return completion, ""
        if sum(m.role == "user" for m in messages) > 1:
            return None
        return cut_turn(messages[:start], completed, self.max_length + 1, self.turns.tokenizer)

    def _refused(self, size: int) -> RowError:
        raising = "raise data.max_seq_len, or split the row"
        return RowError(
            "the last turn alone is too long" if self.too_long == "turns" else "the row is too long",
            code=TOO_LONG,
            where="$",
            found=f"{size} tokens",
            expected=f"at most {self.max_length} (data.max_seq_len)",
            fix=raising if self.too_long == "truncate" else f"set data.too_long=truncate, or {raising}",
        )

    def _sample(self, completion: EncodedCompletion, truncated: str, messages: Sequence[Message]) -> Sample:
        """``messages``: what the tokens were made of; the last ones may be cut off."""
        input_ids, labels = self.turns.arrays(completion)
        n = len(input_ids)
        return Sample(
            input_ids=input_ids,
            labels=labels,
            position_ids=np.arange(n, dtype=np.int64),
            end_rows=np.full(n, n, np.int32),
            truncated=truncated,
            media=self.media.references(messages, input_ids.tolist()) if self.media is not None else (),
        )
