"""Rollouts with their rewards. Nothing is learned here; one model implementation samples and learns.

Letters: P prompts, G completions of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_generation.media import prompt_media
from erniecore_generation.rollout import Rollout, completions_of, roll_out
from erniecore_generation.sampling import Sampling

from erniecore.api.method import Tokenizer
from erniecore.api.reward import RewardFunction
from erniecore_rl.pool import joined
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
        max_new_tokens=[max_new_tokens - prompt.hint for prompt in prompts],
        copies=copies,
        streams=streams(prompts, copies),
        media=[prompt_media(tokenizer.chat_template, prompt.ids, prompt.media) for prompt in prompts],
        batch_size=batch_size,
    )
    return score(tokenizer, prompts, rollouts, functions, copies)


def go_on(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    begun: Sequence[Rollout],
    *,
    sampling: Sampling,
    copies: int,
    max_new_tokens: int,
    batch_size: int = 0,
    until: int,
    ended: Callable[[bool], bool],
) -> list[Rollout]:
    """The rollouts ``begun`` (``copies`` of each prompt), further: until the first ``until`` have ended, on all processes
    (``ended``: see ``roll_out``). A prompt is read once for each of its completions, with what the completion has so far: the
    weights have changed since."""
    numbers, template = streams(prompts, copies), tokenizer.chat_template
    left = [max_new_tokens - prompts[i // copies].hint - len(one.ids) for i, one in enumerate(begun)]
    rows = [i for i, one in enumerate(begun) if not one.finished and left[i] > 0]
    found, needed = list(begun), sum(i < until for i in rows)
    if ended(not needed):
        return found
    texts = [np.concatenate([prompts[i // copies].ids, begun[i].ids]) for i in rows]
    media = [prompt_media(template, text, prompts[i // copies].media) for i, text in zip(rows, texts, strict=True)]
    more = roll_out(
        model,
        tokenizer,
        [text.tolist() for text in texts],
        sampling=sampling,
        max_new_tokens=[left[i] for i in rows],
        streams=[numbers[i] for i in rows],
        media=media,
        batch_size=batch_size,
        until=needed,
        ended=ended,
    )
    for i, rollout in zip(rows, more, strict=True):
        found[i] = joined(begun[i], rollout)
    return found


def score(
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    functions: Sequence[RewardFunction],
    copies: int,
) -> ScoredRollouts:
    """The rewards of rollouts that have ended, ``copies`` of each prompt."""
    completions = []
    for i, prompt in enumerate(prompts):
        own = rollouts[i * copies : (i + 1) * copies]
        if prompt.hint:  # a reward function sees the hint as part of the completion
            hint, zeros = prompt.ids[len(prompt.question) :], np.zeros(prompt.hint)
            own = [joined(Rollout(hint, zeros, zeros, finished=False), one) for one in own]
        completions += completions_of(tokenizer, prompt.question.tolist(), own, prompt.reference.tolist())
    values = {f.name: f.compute(completions) if completions else [] for f in functions}
    by_function = {name: np.asarray(found, np.float64).reshape(-1, copies) for name, found in values.items()}
    rewards = np.zeros((len(prompts), copies))
    for function in functions:
        rewards = rewards + function.weight * by_function[function.name]
    return ScoredRollouts(rollouts, by_function, rewards)


def solved(rewards: Floats, solved_at: float) -> NDArray[np.bool_]:
    """Of any shape: which rewards are at least ``solved_at``, rounding aside."""
    found: NDArray[np.bool_] = rewards >= solved_at - 1e-9
    return found


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
        "solved": (float(solved(rewards, solved_at).sum()), n),
        "length": (tokens, n),
        "truncated": (float(sum(not r.finished for r in rollouts)), n),
        "entropy": (float(sum(r.entropies.sum() for r in rollouts)), tokens),
    }
    for name, values in scored.by_function.items():
        metrics[f"reward/{name}"] = float(values.sum()), n
        metrics[f"reward/{name}/std"] = (float(values.std()) * n if n else 0.0), n
    return metrics
