"""The learning rate as a pure function of the step. No state, no paddle: resuming needs nothing but the step number.

Letters: s step (1-based), w warm-up steps, T all steps, q progress of the decay in [0, 1).

* warm-up: peak · s / w for s ≤ w, so that the first step already learns and step w runs at the peak;
* after it q = (s − 1 − w) / (T − w): step w + 1 runs at the peak, and ``min_lr`` is reached where step T + 1 would be,
  so that the last step still learns. q is the value that PyTorch-style schedulers use for the same update;
* ``wsd`` is constant until its tail of D steps, in which q = (s − 1 − (T − D)) / D; its shapes leave 1 − q, 1 − √q or
  (0.05^q − 0.05) / 0.95 of the rate above ``min_lr`` (the last two as in the open ERNIE 4.5 pre-training code).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from erniecore.config.core import TrainSection


def warmup_length(total: int, settings: TrainSection) -> int:
    """Warm-up steps: ``warmup_steps`` if set, else ``warmup_ratio`` of all steps, rounded up."""
    return settings.warmup_steps or math.ceil(settings.warmup_ratio * total)


def learning_rate(step: int, total: int, settings: TrainSection) -> float:
    """The rate of optimizer step ``step`` (1-based) of ``total``.

    After ``total`` (a run that was extended) decaying schedules stay at ``min_lr``.

    Raises:
        ValueError: a step below 1.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, got {step}")
    warmup = warmup_length(total, settings) if settings.schedule != "constant" else 0
    if step <= warmup:
        return settings.learning_rate * step / warmup
    if settings.schedule in ("constant", "constant-with-warmup"):
        return settings.learning_rate
    if settings.schedule == "wsd":
        tail = decay_length(total, settings)
        done = (step - 1 - (total - tail)) / tail
        remaining = TAILS[settings.decay_shape](min(max(done, 0.0), 1.0))
    else:
        done = (step - 1 - warmup) / max(total - warmup, 1)
        remaining = DECAYS[settings.schedule](min(done, 1.0), settings.power)
    return settings.min_lr + (settings.learning_rate - settings.min_lr) * remaining


def decay_length(total: int, settings: TrainSection) -> int:
    """Length of the WSD tail: ``decay_steps`` if set, else a tenth of all steps, at least one, at most all."""
    return max(1, min(settings.decay_steps or round(total / 10), total))


#: q, power -> share of (peak − min_lr) that is left; 1 at q = 0, 0 at q = 1.
DECAYS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda q, power: 1 - q,
    "cosine": lambda q, power: (1 + math.cos(math.pi * q)) / 2,
    "polynomial": lambda q, power: float((1 - q) ** power),
}
TAILS: dict[str, Callable[[float], float]] = {
    "linear": lambda q: 1 - q,
    "1-sqrt": lambda q: 1 - math.sqrt(q),
    "half-life": lambda q: (0.05**q - 0.05) / 0.95,  # as ERNIEKit's wsd decays
}
