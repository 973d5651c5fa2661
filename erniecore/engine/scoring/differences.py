"""Metrics that are differences of two others. An objective reports sums and weights, which add up over micro-batches; a
difference of two means with different weights does not, so it is taken once the means are there. Light.
"""

from __future__ import annotations

from collections.abc import Mapping

#: metric -> (minuend, subtrahend); an objective that reports the metric itself is left alone
DIFFERENCES: Mapping[str, tuple[str, str]] = {"rewards/margins": ("rewards/chosen", "rewards/rejected")}


def with_differences(means: Mapping[str, float]) -> dict[str, float]:
    """``means``, and those differences of which both parts are there."""
    made = {
        name: means[a] - means[b]
        for name, (a, b) in DIFFERENCES.items()
        if name not in means and {a, b} <= means.keys()
    }
    return {**means, **made}
