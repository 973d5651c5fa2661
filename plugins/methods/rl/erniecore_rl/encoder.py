"""Encodes conversations as prompts with a reference answer. numpy only.

A sample is [prompt | reference answer]: the model completes the prompt, and reward functions get the reference, which is not
trained on. Per-token fields as in ``erniecore_preference.encoder``: ``sample`` is 1 at the first token; ``completion`` is
CHOSEN where the reference is predicted, 0 before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from erniecore_preference.encoder import CHOSEN, PairEncoder, completion_sample, prompts
from erniecore_text import PROMPT_CUT, EncodedCompletion, Prompts, TurnEncoder

from erniecore.api import RowError
from erniecore.api.data import Conversation, MediaReader, Message
from erniecore.api.method import Record, Sample, Tokenizer

TOO_LONG, NO_QUESTION, NO_REFERENCE = "ERN-D044", "ERN-D075", "ERN-D076"


class PromptEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: maximum tokens of prompt and completion.
        new_tokens: maximum tokens of a new completion; they must fit after the prompt.
        too_long: of longer prompts. ``drop``; ``turns``: without their earliest turns, texts stay whole; ``truncate``: then
            the last question is cut, too, and keeps its end.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, new_tokens: int, too_long: str = "turns") -> None:
        self.turns, self.max_length, self.new_tokens = TurnEncoder(tokenizer), max_length, new_tokens
        self.too_long = too_long
        template: Any = tokenizer.chat_template
        self.media: MediaReader | None = template if isinstance(template, MediaReader) else None

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample. The prompt is shortened until the reference and a new completion fit.

        Raises:
            RowError: no question, no reference answer, no room, and what ``TurnEncoder`` refuses.
        """
        assert isinstance(record, Conversation)
        check_row(record)
        reference = [replace(record.messages[-1], learn=True)]
        where, needed = f"$.messages[{len(record.messages) - 1}]", 0

        def completed(prompt: Sequence[Message]) -> EncodedCompletion:
            return self.turns.encode_completion(prompt, reference, record.tools, where)

        def size(prompt: Sequence[Message]) -> int:
            completion = completed(prompt)
            return max(completion.size, len(completion.prompt) + self.new_tokens)

        for prompt, why in prompts(record.messages[:-1], self.too_long, self.max_length):
            needed = size(prompt)
            if needed <= self.max_length:
                return [self._sample(prompt, completed(prompt), why, record)]
            if self.too_long == "truncate" and sum(m.role == "user" for m in prompt) == 1:
                shorter = Prompts(prompt, size, self.max_length, self.turns.tokenizer).within(self.max_length)
                if shorter is not None:
                    reasons = ", ".join(filter(None, [why, PROMPT_CUT]))
                    return [self._sample(shorter, completed(shorter), reasons, record)]
        raise too_long(needed, self.max_length, self.new_tokens)

    def _sample(self, prompt: Sequence[Message], completion: EncodedCompletion, why: str, record: Record) -> Sample:
        """With the images of its prompt."""
        sample = completion_sample(self.turns, completion, CHOSEN, why, record.origin)
        if self.media is None:
            return sample
        return replace(sample, media=self.media.references(prompt, completion.prompt))


class PairPromptEncoder(PairEncoder):
    """Encodes preference pairs as prompts: the chosen completion is the reference answer, and both are a pair to train on."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, new_tokens: int, too_long: str = "turns") -> None:
        super().__init__(tokenizer, max_length, too_long=too_long)
        self.new_tokens = new_tokens

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample as ``PairEncoder`` makes it. Raises ``RowError`` as that does, and where no new tokens fit."""
        samples = super().encode(record)
        for sample in samples:
            size = int((sample.fields["completion"] == 0).sum()) + 1 + self.new_tokens
            if size > self.max_length:
                raise too_long(size, self.max_length, self.new_tokens)
        return samples


def check_row(record: Conversation) -> None:
    """Raise ``RowError`` unless the row ends with a user or tool message and an assistant message."""
    *asked, last = record.messages or (None,)
    if last is None or last.role != "assistant" or not asked or asked[-1].role not in ("user", "tool"):
        raise RowError(
            "the row does not end with a question and a reference answer",
            code=NO_QUESTION,
            where="$.messages",
            found=", ".join(m.role for m in record.messages) or "no messages",
            expected="…, user, assistant: the last message is the reference answer for the reward functions",
        )
    if not (last.content.strip() or last.tool_calls):
        raise RowError(
            "the reference answer is empty",
            code=NO_REFERENCE,
            where=f"$.messages[{len(record.messages) - 1}].content",
            expected="the reference answer, for the reward functions",
        )


def too_long(size: int, limit: int, new_tokens: int) -> RowError:
    """The error of a row that leaves no room."""
    return RowError(
        "the last question and its reference answer, or a new completion, are too long",
        code=TOO_LONG,
        where="$",
        found=f"{size} tokens, with {new_tokens} for a new completion (method.max_new_tokens)",
        expected=f"at most {limit} (data.max_seq_len)",
        fix="set data.too_long=truncate, or raise data.max_seq_len, or lower method.max_new_tokens",
    )
