"""Completions of a rollout as text, and the functions that compute their rewards. No tokens, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a prompt.

    Attributes:
        prompt: the prompt as the model got it, special tokens of the chat template included.
        text: everything that the model wrote but the stop token, with tags such as ``</think>``.
        content: the part of ``text`` that is meant for the reader.
        reasoning: its thinking part.
        reference: the correct answer from the data, without a thinking part.
        finished: the model ended the completion itself; ``False``: it was cut off at the limit.
        num_tokens: new tokens, the stop token included.
    """

    prompt: str
    text: str
    content: str
    reasoning: str
    reference: str
    finished: bool
    num_tokens: int


class RewardFunction(NamedTuple):
    """A reward function of the run, ready to call: its name, its weight in the sum, and what calls its hook."""

    name: str
    weight: float
    compute: Callable[[Sequence[Completion]], Sequence[float]]
