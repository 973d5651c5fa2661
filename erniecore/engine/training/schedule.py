"""The learning rate as a pure function of the step. No state, no paddle: resuming needs nothing but the step number.

Letters: s step (1-based), w warm-up steps, T all steps, q progress of the decay in [0, 1).

* warm-up: peak · s / w for s ≤ w, so that the first step already learns and step w runs at the peak;
* after it q = (s − 1 − w) / (T − w): step w + 1 runs at the peak, and ``min_lr`` is reached where step T + 1 would be,
  so that the last step still learns. q is the value that PyTorch-style schedulers use for the same update;
* ``wsd`` is constant until its tail of D steps, in which q = (s − 1 − (T − D)) / D; its shapes leave 1 − q, 1 − √q or
  (0.05^q − 0.05) / 0.95 of the rate above ``min_lr`` (the last two as in the open ERNIE 4.5 pre-training code);
* ``cosine-with-restarts`` is the cosine of c·q mod 1 for c cycles of equal length, each from the peak (SGDR, arXiv:1608.03983,
  equation 5, with equal T_i);
* ``inverse-sqrt`` leaves √(t / (s − 1 − w + t)), t = w, or 10,000 steps without a warm-up (arXiv:1706.03762, equation 3,
  s counted from 0; t is the ``timescale`` of transformers). It never ends, so T does not matter to it;
* a plugin of kind ``schedule`` says itself what is left of the rate above ``min_lr``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from erniecore.config.core import TrainSection
from erniecore.errors import PluginBroken, shorten

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings
    from erniecore.host import Host
    from erniecore.plugin import Plugin

#: (step after the warm-up from 0, steps after the warm-up, warm-up steps) -> what is left of the rate above ``min_lr``
Factor = Callable[[int, int, int], float]


def warmup_length(total: int, settings: TrainSection) -> int:
    """Warm-up steps: ``warmup_steps`` if set, else ``warmup_ratio`` of all steps, rounded up."""
    return settings.warmup_steps or math.ceil(settings.warmup_ratio * total)


def factor_of(host: Host, plugins: Sequence[Plugin], settings: RunSettings) -> Factor | None:
    """The schedule of a plugin, its results checked; ``None``: a built-in one is chosen."""
    if not plugins:
        return None
    plugin = plugins[0]
    config = settings.schedules[plugin.name]

    def factor(step: int, length: int, warmup: int) -> float:
        arguments = {"step": step, "length": length, "warmup": warmup}
        found = host.call(plugin, "ernie_schedule_factor", config=config, **arguments)
        if not isinstance(found, int | float) or not 0 <= found <= 1:  # NaN is refused, too
            given = ", ".join(f"{name} {value}" for name, value in arguments.items())
            raise PluginBroken(
                f"schedule {plugin.name!r} gave a factor that is no number from 0 to 1",
                where=type(plugin).__module__,
                found=f"{shorten(found)} for {given}",
            )
        return float(found)

    return factor


def learning_rate(step: int, total: int, settings: TrainSection, factor: Factor | None = None) -> float:
    """The rate of optimizer step ``step`` (1-based) of ``total``; ``factor`` is that of a plugin, in place of the built-in ones.

    After ``total`` (a run that was extended) decaying schedules stay at ``min_lr``; ``inverse-sqrt`` goes on.

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
    past, length = step - 1 - warmup, max(total - warmup, 1)
    if factor is not None:
        remaining = factor(past, length, warmup)
    elif settings.schedule == "wsd":
        tail = decay_length(total, settings)
        done = (step - 1 - (total - tail)) / tail
        remaining = TAILS[settings.decay_shape](min(max(done, 0.0), 1.0))
    elif settings.schedule == "inverse-sqrt":
        timescale = warmup or TIMESCALE
        remaining = math.sqrt(timescale / (past + timescale))
    elif settings.schedule == "cosine-with-restarts":
        # in whole numbers: 49 · (1 / 49) is below 1 in floating point, and would be the end of a cycle, not its beginning
        done = past * settings.cycles % length / length if past < length else 1.0
        remaining = DECAYS["cosine"](done, settings.power)
    else:
        remaining = DECAYS[settings.schedule](min(past / length, 1.0), settings.power)
    return settings.min_lr + (settings.learning_rate - settings.min_lr) * remaining


def decay_length(total: int, settings: TrainSection) -> int:
    """Length of the WSD tail: ``decay_steps`` if set, else a tenth of all steps, at least one, at most all."""
    return max(1, min(settings.decay_steps or round(total / 10), total))


#: of ``inverse-sqrt`` without a warm-up, in steps
TIMESCALE = 10_000
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
