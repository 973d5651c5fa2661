"""Rollouts with their rewards. Nothing is learned here; one model implementation samples and learns.

Letters: P prompts, G completions of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_generation.media import prompt_media
from erniecore_generation.rollout import Rollout, completions_of, roll_out
from erniecore_generation.sampling import Sampling

from erniecore.api.method import Tokenizer
from erniecore.api.reward import RewardFunction
from erniecore_rl.prompts import Prompt, streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Metrics = dict[str, tuple[Any, float]]


@dataclass(frozen=True)
class ScoredRollouts:
    """Rollouts of P prompts, G each, in the order of the prompts.

    Attributes:
        rollouts: P * G of them. by_function: name of a reward function -> its rewards [P, G].
        rewards: [P, G], the weighted sum.
    """

    rollouts: Sequence[Rollout]
    by_function: dict[str, Floats]
    rewards: Floats

    def group(self, index: int) -> Sequence[Rollout]:
        """The rollouts of one prompt."""
        G = self.rewards.shape[1]
        return self.rollouts[index * G : (index + 1) * G]


def score_rollouts(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    functions: Sequence[RewardFunction],
    *,
    sampling: Sampling,
    copies: int,
    max_new_tokens: int,
    batch_size: int = 0,
) -> ScoredRollouts:
    """Complete each prompt ``copies`` times and compute the rewards."""
    rollouts = roll_out(
        model,
        tokenizer,
        [prompt.ids.tolist() for prompt in prompts],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        copies=copies,
        streams=streams(prompts, copies),
        media=[prompt_media(tokenizer.chat_template, prompt.ids, prompt.media) for prompt in prompts],
        batch_size=batch_size,
    )
    completions = [
        completion
        for i, prompt in enumerate(prompts)
        for completion in completions_of(
            tokenizer, prompt.ids.tolist(), rollouts[i * copies : (i + 1) * copies], prompt.reference.tolist()
        )
    ]
    by_function = {f.name: np.asarray(f.compute(completions), np.float64).reshape(-1, copies) for f in functions}
    rewards = np.zeros((len(prompts), copies))
    for function in functions:
        rewards = rewards + function.weight * by_function[function.name]
    return ScoredRollouts(rollouts, by_function, rewards)


def measured(scored: ScoredRollouts, solved_at: float) -> Metrics:
    """Metrics as (sum, weight). ``reward``: weighted sum, per completion; ``reward/std``: within groups;
    ``reward/NAME`` and ``reward/NAME/std``: of one reward function over all completions; ``solved``: fraction with the
    reward ``solved_at``; ``length``: tokens; ``truncated``: fraction that was cut off; ``entropy``: per token, in nats."""
    rollouts, rewards = scored.rollouts, scored.rewards
    n = float(len(rollouts))
    tokens = float(sum(len(r.ids) for r in rollouts))
    metrics: Metrics = {
        "reward": (float(rewards.sum()), n),
        "reward/std": (float(rewards.std(axis=1).sum()), float(len(rewards))),
        "solved": (float((rewards >= solved_at - 1e-9).sum()), n),
        "length": (tokens, n),
        "truncated": (float(sum(not r.finished for r in rollouts)), n),
        "entropy": (float(sum(r.entropies.sum() for r in rollouts)), tokens),
    }
    for name, values in scored.by_function.items():
        metrics[f"reward/{name}"] = float(values.sum()), n
        metrics[f"reward/{name}/std"] = float(values.std()) * n, n
    return metrics
