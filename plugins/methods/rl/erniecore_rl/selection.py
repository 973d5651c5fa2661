"""Which prompts of the data a step asks, and which of them with a hint: by the rates at which the initial model solved them.

Everything here depends on the step that a prompt belongs to and on the prompt alone, so prompts that are begun in an earlier step
and continued runs are asked in the same way.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from erniecore_rl.pass_rates import prompt_key
from erniecore_rl.prompts import prompts_of

if TYPE_CHECKING:
    from erniecore.api.method import Batch
    from erniecore_rl.config import RolloutConfig
    from erniecore_rl.pass_rates import PassRates
    from erniecore_rl.prompts import Prompt


def hint_probability(initial: float, decay: float, step: int, pass_rate: float, floor: float) -> float:
    """p = initial · exp(-decay · step · max(pass_rate, floor)).

    ERNIE 5.0 (arXiv:2602.04705) has no floor: a prompt that the initial model never solves would get hints for ever.
    """
    return initial * math.exp(-decay * step * max(pass_rate, floor))


def hint_size(prompt: Prompt, share: float, max_new_tokens: int) -> int:
    """Tokens of the reference that a hint shows: ``share`` of it without its end token, rounded down, and never all that a
    completion may have."""
    return min(int(share * (len(prompt.reference) - 1)), max_new_tokens - 1)


def with_hint(prompt: Prompt, size: int) -> Prompt:
    """The prompt with the first ``size`` tokens of its reference behind it; these are not learned."""
    return replace(prompt, ids=np.concatenate([prompt.ids, prompt.reference[:size]]), hint=size) if size else prompt


def least_pass_rate(curriculum: Sequence[tuple[int, float]], step: int) -> float:
    """The bound of the last stage that has begun; 0 before the first one. A stage: (step that it begins with, bound)."""
    return max(((begin, bound) for begin, bound in curriculum if begin <= step), default=(0, 0.0))[1]


def drawn(prompt: Prompt, step: int) -> float:
    """A number from 0 to below 1 for a prompt and the step that it belongs to."""
    digest = hashlib.blake2b(f"{prompt_key(prompt)}/{step}".encode(), digest_size=8, person=b"hint").digest()
    return int.from_bytes(digest, "little") / 2.0**64


def prompts_of_step(batches: Sequence[Batch], step: int, config: RolloutConfig, rates: PassRates) -> list[Prompt]:
    """The prompts of some batches that ``step`` (1-based) asks. Where the curriculum leaves none, the one that the initial model
    solves most often."""
    prompts = [prompt for batch in batches for prompt in prompts_of(batch)]
    if config.curriculum and prompts:
        bound = least_pass_rate(config.curriculum, step)
        prompts = [prompt for prompt in prompts if rates.of(prompt) >= bound] or [max(prompts, key=rates.of)]
    if config.hint_probability:
        prompts = [_perhaps_hinted(prompt, step, config, rates) for prompt in prompts]
    return prompts


def _perhaps_hinted(prompt: Prompt, step: int, config: RolloutConfig, rates: PassRates) -> Prompt:
    settings = config.hint_probability, config.hint_decay, step - 1, rates.of(prompt), config.hint_floor
    if drawn(prompt, step) >= hint_probability(*settings):
        return prompt
    return with_hint(prompt, hint_size(prompt, config.hint_share, config.max_new_tokens))
