"""Conversations to prompts with a reference answer. numpy only.

A sample is [prompt | reference answer]: the model completes the prompt, reward functions get the reference. Nothing of
the reference is learned. Further per-token fields, those of ``erniecore_preference.encoder``: ``sample`` is 1 at the first token;
``answer`` is CHOSEN where the reference is predicted, 0 before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from erniecore_preference.encoder import CHOSEN, PairEncoder, answer_sample
from erniecore_text import Turns, shortened

from erniecore.api import RowError
from erniecore.api.data import Conversation
from erniecore.api.method import Record, Sample, Tokenizer

TOO_LONG, NO_QUESTION, NO_REFERENCE = "ERN-D044", "ERN-D075", "ERN-D076"


class PromptEncoder:
    """See ``erniecore.api.Encoder``.

    Args:
        tokenizer: with a chat template. max_length: tokens of prompt and answer at most.
        new_tokens: how many the model may write; they must fit behind the prompt.
    """

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, new_tokens: int) -> None:
        self.turns, self.max_length, self.new_tokens = Turns(tokenizer), max_length, new_tokens

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample. The prompt is shortened by whole turns until both answers fit.

        Raises:
            RowError: no question, no reference answer, no room, and what ``Turns`` refuses.
        """
        assert isinstance(record, Conversation)
        check_row(record)
        reference = [replace(record.messages[-1], learn=True)]
        where, size = f"$.messages[{len(record.messages) - 1}]", 0
        for prompt, why in shortened(record.messages[:-1]):
            answer = self.turns.answer(prompt, reference, record.tools, where)
            size = max(answer.size, len(answer.prompt) + self.new_tokens)
            if size <= self.max_length:
                return [answer_sample(self.turns, answer, CHOSEN, why, record.origin)]
        raise too_long(size, self.max_length, self.new_tokens)


class PairPromptEncoder(PairEncoder):
    """Preferences as prompts: the preferred answer is the reference, and both answers are a pair to learn from."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, *, new_tokens: int) -> None:
        super().__init__(tokenizer, max_length)
        self.new_tokens = new_tokens

    def encode(self, record: Record) -> Sequence[Sample]:
        """One sample as ``PairEncoder`` makes it. Raises ``RowError`` as that does, and where no new tokens fit."""
        samples = super().encode(record)
        for sample in samples:
            size = int((sample.fields["answer"] == 0).sum()) + 1 + self.new_tokens
            if size > self.max_length:
                raise too_long(size, self.max_length, self.new_tokens)
        return samples


def check_row(record: Conversation) -> None:
    """Raise ``RowError`` unless the row ends with a question and its answer."""
    *asked, last = record.messages or (None,)
    if last is None or last.role != "assistant" or not asked or asked[-1].role not in ("user", "tool"):
        raise RowError(
            "there is no question with an answer behind it",
            code=NO_QUESTION,
            where="$.messages",
            found=", ".join(m.role for m in record.messages) or "no messages",
            expected="…, user, assistant: the last answer is the one that completions are compared with",
        )
    if not (last.content.strip() or last.tool_calls):
        raise RowError(
            "the reference answer is empty",
            code=NO_REFERENCE,
            where=f"$.messages[{len(record.messages) - 1}].content",
            expected="the correct answer, for the reward functions",
        )


def too_long(size: int, limit: int, new_tokens: int) -> RowError:
    """The error of a row that leaves no room."""
    return RowError(
        "the last question with its answer, or with a new one, is too long",
        code=TOO_LONG,
        where="$",
        found=f"{size} tokens, with {new_tokens} for a new answer (method.max_new_tokens)",
        expected=f"at most {limit} (data.max_seq_len)",
        fix="raise data.max_seq_len, or lower method.max_new_tokens",
    )
