"""How much better a completion is than the others to the same prompt; numpy only. Letters: P prompts, G completions each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: rewards of a group that differ by less are the same but for rounding
SAME = 1e-9


def centered(rewards_PG: Floats) -> Floats:
    """A = r - mean(r) over the group.

    Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO, 2025), arXiv:2503.20783."""
    spread = np.ptp(rewards_PG, axis=1, keepdims=True)
    return np.where(spread > SAME, rewards_PG - rewards_PG.mean(axis=1, keepdims=True), 0.0)


def standardized(rewards_PG: Floats) -> Floats:
    """A = (r - mean(r)) / std(r) over the group, with the divisor G in the variance; 0 where all are the same.

    Shao et al., "DeepSeekMath" (GRPO, 2024), arXiv:2402.03300."""
    difference = centered(rewards_PG)
    std = np.sqrt((difference**2).mean(axis=1, keepdims=True))
    return difference / np.where(std > 0, std, 1.0)


def leave_one_out(rewards_PG: Floats) -> Floats:
    """A_i = r_i - mean of the other rewards of the group = (r_i - mean(r)) G / (G - 1).

    Ahmadian et al., "Back to Basics" (RLOO, 2024), arXiv:2402.14740."""
    G = rewards_PG.shape[1]
    scaled: Floats = centered(rewards_PG) * (G / (G - 1))
    return scaled


def positive_weights(
    advantages_G: Floats,
    entropies_G: Floats,
    accuracy: float,
    *,
    reduction: float,
    entropy: float,
    accuracy_above: float,
) -> Floats:
    """1 - M, the weight [G] of each completion of a prompt: M is ``reduction`` for a completion that is better than the others
    (A > 0), whose mean entropy per token (nats) is below ``entropy``, and whose prompt is answered right more often than
    ``accuracy_above``; else 0.

    ERNIE 5.0 (arXiv:2602.04705): what is learned well already is not to take entropy further down.
    """
    learned_well = (advantages_G > 0) & (entropies_G < entropy) & (accuracy > accuracy_above)
    return np.where(learned_well, 1 - reduction, 1.0)


#: ``method.scale_rewards`` -> advantages of rewards [P, G]
ADVANTAGES: Mapping[str, Callable[[Floats], Floats]] = {"std": standardized, "none": centered}


def zero_variance(rewards_PG: Floats) -> NDArray[np.bool_]:
    """bool [P]: groups in which all completions are worth the same."""
    same: NDArray[np.bool_] = np.ptp(rewards_PG, axis=1) <= SAME
    return same
