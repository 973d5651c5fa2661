"""Rollouts: what the model tries, and what that is worth. Learns nothing; the same model code answers and learns.

Letters: P prompts, G answers to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api import Rollout, Sampling, Scorer, Tokenizer, attempts_of, roll_out
from erniecore_rl.prompts import Prompt, streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Metrics = dict[str, tuple[Any, float]]


@dataclass(frozen=True)
class Tried:
    """Answers to P prompts, G each, in the order of the prompts.

    Attributes:
        rollouts: P * G of them. scores: name of a scorer -> [P, G]. rewards: [P, G], their weighted sum.
    """

    rollouts: Sequence[Rollout]
    scores: dict[str, Floats]
    rewards: Floats

    def group(self, index: int) -> Sequence[Rollout]:
        """The answers to one prompt."""
        G = self.rewards.shape[1]
        return self.rollouts[index * G : (index + 1) * G]


def try_prompts(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    scorers: Sequence[Scorer],
    *,
    sampling: Sampling,
    copies: int,
    max_new_tokens: int,
    batch_size: int = 0,
) -> Tried:
    """Answer each prompt ``copies`` times and score the answers."""
    rollouts = roll_out(
        model,
        tokenizer,
        [prompt.ids.tolist() for prompt in prompts],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        copies=copies,
        streams=streams(prompts, copies),
        batch_size=batch_size,
    )
    attempts = [
        attempt
        for i, prompt in enumerate(prompts)
        for attempt in attempts_of(
            tokenizer, prompt.ids.tolist(), rollouts[i * copies : (i + 1) * copies], prompt.reference.tolist()
        )
    ]
    scores = {s.name: np.asarray(s.score(attempts), np.float64).reshape(-1, copies) for s in scorers}
    rewards = np.zeros((len(prompts), copies))
    for scorer in scorers:
        rewards = rewards + scorer.weight * scores[scorer.name]
    return Tried(rollouts, scores, rewards)


def measured(tried: Tried, solved_at: float) -> Metrics:
    """Metrics as (sum, weight). ``reward``: weighted sum of the scores, per answer; ``reward/std``: within groups;
    ``reward/NAME`` and ``reward/NAME/std``: of one scorer over all answers; ``solved``: share of answers with the reward
    ``solved_at``; ``length``: tokens; ``truncated``: share that was cut off; ``entropy``: per token, in nats."""
    n = float(len(tried.rollouts))
    tokens = float(sum(len(r.ids) for r in tried.rollouts))
    metrics: Metrics = {
        "reward": (float(tried.rewards.sum()), n),
        "reward/std": (float(tried.rewards.std(axis=1).sum()), float(len(tried.rewards))),
        "solved": (float((tried.rewards >= solved_at - 1e-9).sum()), n),
        "length": (tokens, n),
        "truncated": (float(sum(not r.finished for r in tried.rollouts)), n),
        "entropy": (float(sum(r.entropies.sum() for r in tried.rollouts)), tokens),
    }
    for name, scores in tried.scores.items():
        metrics[f"reward/{name}"] = float(scores.sum()), n
        metrics[f"reward/{name}/std"] = float(scores.std()) * n, n
    return metrics
