"""Rows that are longer than a sample may be: which turns stay, and where texts are cut (``data.too_long``).

A cut question keeps its end, next to the completion; a cut completion keeps its beginning and has no end token, so nothing
is learned about stopping there. Questions are cut as text and rendered again: what stands before a completion is always a
prompt that the chat template writes. How much each part keeps is LLaMA-Factory's rule for single completions; in preferences
the prompt gives way first, as TRL has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erniecore.api.data import Message
from erniecore_text.turns import EncodedCompletion

if TYPE_CHECKING:
    from erniecore.api.method import Tokenizer

#: why a sample was shortened
LATER_TURNS, PROMPT_CUT, COMPLETION_CUT = "later turns left out", "prompt cut", "completion cut"


class Prompts:
    """Ever shorter forms of a prompt whose question is cut at its start.

    Args:
        messages: whose longest text of a user or tool is cut. Those with images stay whole.
        size: tokens of a prompt with such messages.
        total: tokens that prompt and completions may have together.
    """

    def __init__(
        self, messages: Sequence[Message], size: Callable[[Sequence[Message]], int], total: int, tokenizer: Tokenizer
    ) -> None:
        asked = [i for i, m in enumerate(messages) if m.role in ("user", "tool") and not m.media]
        self._at = max(asked, key=lambda i: len(messages[i].content), default=-1)
        self._messages, self._size, self._tokenizer, self._total = messages, size, tokenizer, total
        self._ids = tokenizer.encode(messages[self._at].content) if asked else []
        self._fixed = size(messages) - len(self._ids)

    def beside(self, completion: int, *, question_first: bool) -> Sequence[Message] | None:
        """The prompt that stays beside completions of so many tokens, which may be cut too; None where the rest of the prompt
        leaves no quarter of all.

        Args:
            question_first: the question is cut before the completions, down to a quarter. Else whichever takes less than half
                stays whole, and where neither does, both are cut alike. What is not question (marks of the template,
                the system text) is set aside first.
        """
        room, question = self._total - self._fixed, len(self._ids)
        if 4 * self._fixed > 3 * self._total:
            return None
        if question + completion <= room:
            return self._messages
        if question_first:
            kept = max(room // 4, room - completion)
        elif 2 * completion <= room:
            kept = room - completion
        elif 2 * question <= room:
            kept = question
        else:
            kept = room * question // (question + completion)
        if question <= kept:
            return self._messages
        shorter = self.within(self._fixed + kept)
        whole_fits = 4 * (self._fixed + question) <= 3 * self._total
        return self._messages if shorter is None and whole_fits else shorter

    def within(self, limit: int) -> Sequence[Message] | None:
        """The longest form with at most ``limit`` tokens; None where nothing would be left of the question."""
        keep = min(len(self._ids), limit - self._fixed)
        while keep > 0:
            text = self._tokenizer.decode(self._ids[-keep:]).lstrip("\ufffd")  # half of a character
            if not text.strip():
                return None
            message = replace(self._messages[self._at], content=text)
            shorter = [*self._messages[: self._at], message, *self._messages[self._at + 1 :]]
            over = self._size(shorter) - limit
            if over <= 0:
                return shorter
            keep -= over  # cut anew, a text may have other tokens
        return None


def cut_turn(
    prompt: Sequence[Message],
    completed: Callable[[Sequence[Message]], EncodedCompletion],
    total: int,
    tokenizer: Tokenizer,
    *,
    question_first: bool = False,
) -> tuple[EncodedCompletion, str] | None:
    """A completion behind as much of its prompt as fits, and what was cut; None where even that does not fit.

    Args:
        completed: the whole completion behind a prompt.
        total: tokens of both.
    """
    completion = completed(prompt)
    forms = Prompts(prompt, lambda messages: len(completed(messages).prompt), total, tokenizer)
    fitting = forms.beside(len(completion.ids), question_first=question_first)
    if fitting is None:
        return None
    why = [] if fitting is prompt else [PROMPT_CUT]
    completion = completed(fitting)
    count = total - len(completion.prompt)
    if count < len(completion.ids):
        completion, why = beginning(completion, count), [*why, COMPLETION_CUT]
    return completion, ", ".join(why)


def beginning(completion: EncodedCompletion, count: int) -> EncodedCompletion:
    """The first ``count`` tokens of a completion."""
    return EncodedCompletion(completion.prompt, completion.ids[:count], completion.is_target[:count])
