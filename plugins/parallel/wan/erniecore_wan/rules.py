"""Decisions of wide-area training as pure functions: how updates are weighted and clipped, and when and how sites exchange them.

The time of a round over a link is bytes / bandwidth for each direction plus a round trip; a site is used
H·t_step / (H·t_step + t_comm) of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from erniecore_wan.arrays import Vector


def clip_factors(norms: Sequence[float], limit: float) -> list[float]:
    """Factor of each update, so that none is longer than ``limit`` times the median norm of the round; 0: no clipping."""
    if not limit or not norms:
        return [1.0] * len(norms)
    bound = limit * median(norms)
    return [1.0 if norm <= bound else bound / norm for norm in norms]


def weighted_mean(updates: Sequence[Vector], weights: Sequence[float], factors: Sequence[float]) -> Vector:
    """Σ w·f·Δ / Σ w, in the order given, so that everybody who has the updates gets the same bits.

    Args:
        updates: float32 [n] each. weights: samples of each site. factors: of :func:`clip_factors`.
    """
    whole = float(sum(weights))
    mean = np.zeros_like(updates[0])
    for update, weight, factor in zip(updates, weights, factors, strict=True):
        mean = mean + np.float32(weight * factor / whole) * update
    return mean


@dataclass(frozen=True, slots=True)
class Link:
    """What a site has measured of its link: bytes per second each way, and seconds of a round trip."""

    up: float
    down: float
    delay: float

    def seconds(self, sent: float, received: float) -> float:
        """Time to send and to receive so many bytes."""
        return sent / self.up + received / self.down + self.delay


def utilization(steps: int, step_seconds: float, comm_seconds: float) -> float:
    """Share of the time in which a site computes."""
    return steps * step_seconds / (steps * step_seconds + comm_seconds)


def fewest_steps(step_seconds: float, comm_seconds: float, overhead: float) -> int:
    """The smallest H with t_comm / (H·t_step + t_comm) ≤ ``overhead``."""
    return max(1, math.ceil(comm_seconds * (1 - overhead) / (overhead * step_seconds) - 1e-9))


def loss_steps(first: int, loss: float, first_loss: float, rate: float = 1.0, first_rate: float = 1.0) -> int:
    """Adaptive LocalSGD: ceil(√(η₀·loss / (η·loss₀) · H₀)), the fewer steps the lower the loss; at least 1."""
    return max(1, math.ceil(math.sqrt(first_rate * loss / (rate * first_loss) * first) - 1e-9))


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision: H, the form that updates have, values per chunk where it is sparse (0: dense), and why."""

    interval: int
    form: str
    k: int
    reason: str


def choose(
    forms: Sequence[tuple[str, int, float]],
    *,
    link: Link,
    step_seconds: float,
    overhead: float,
    cap: int,
    loss: float,
    first_loss: float,
) -> Choice:
    """H and the form of the next rounds: of ``forms``, the first (they are ordered from the most exact to the smallest) with
    which an H up to ``cap`` keeps the overhead; the last one if none does.

    H is then what the link needs, or what the loss allows (:func:`loss_steps` of ``cap``) if that is more.

    Args:
        forms: (form, k, bytes of an update). overhead: share of the time that may be spent on exchange.
        cap: most steps between two exchanges: beyond it the sites drift apart.
    """
    found: tuple[str, int, int, float] | None = None
    for form, k, size in forms:
        seconds = link.seconds(size, size)
        needed = fewest_steps(step_seconds, seconds, overhead)
        found = (form, k, needed, seconds)
        if needed <= cap:
            break
    if found is None:
        raise ValueError("there is no form to choose from")
    form, k, needed, seconds = found
    drift = loss_steps(cap, loss, first_loss)
    steps = min(max(needed, drift), cap)
    wanted = (
        f"{seconds:.3g} s of exchange and {step_seconds:.3g} s a step need {needed} steps for {overhead:.0%} overhead"
    )
    reason = f"{wanted}; the loss {loss:.4g} (first {first_loss:.4g}) allows {drift}; at most {cap}"
    return Choice(steps, form, k, reason)


def balanced(interval: int, step_seconds: Mapping[str, float]) -> dict[str, int]:
    """Steps of each site, so that all need about as long as the slowest for ``interval`` steps."""
    slowest = max(step_seconds.values())
    return {name: max(1, round(interval * slowest / seconds)) for name, seconds in step_seconds.items()}
