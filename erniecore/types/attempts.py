"""What a model tried in a rollout, as text, and who scores it. No tokens, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of the model to one prompt.

    Attributes:
        prompt: the prompt as the model saw it, control tokens of the chat template included.
        text: everything that the model wrote but the token that ended it, with tags such as ``</think>``.
        answer: what of it is meant for the reader.
        reasoning: its thinking part.
        reference: the right answer from the data, as far as it is meant for the reader.
        finished: the model ended the answer itself; ``False``: it was cut off at the limit.
        num_tokens: new tokens, the one that ended it included.
    """

    prompt: str
    text: str
    answer: str
    reasoning: str
    reference: str
    finished: bool
    num_tokens: int


class Scorer(NamedTuple):
    """A scorer of the run, ready to use: its name, its weight in the sum, and what calls its hook."""

    name: str
    weight: float
    score: Callable[[Sequence[Attempt]], Sequence[float]]
