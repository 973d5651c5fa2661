"""Intervals of means and of paired differences. Pure functions of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from random import Random

#: two-sided 95 % of Student's t, by degrees of freedom; beyond the last one the next lower entry is used, which is the wider
T = {
    **{1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201},
    **{12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086, 30: 2.042},
}
RESAMPLES = 10_000


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval (Student's t); infinite for a single value."""
    n = len(differences)
    if n < 2:
        return differences[0], math.inf
    degrees = max(known for known in T if known < n)
    return statistics.mean(differences), T[degrees] * statistics.stdev(differences) / math.sqrt(n)


def bootstrap(differences: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """Ends of the 95 % percentile bootstrap interval of the mean; the same numbers for the same input."""
    random, n = Random(0), len(differences)
    means = sorted(statistics.mean(random.choices(differences, k=n)) for _ in range(resamples))
    return means[int(0.025 * resamples)], means[int(0.975 * resamples) - 1]
