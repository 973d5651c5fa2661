"""The geometry of a line chart: scales, ticks, paths. Pure functions of numbers; the template draws the result.

Coordinates are those of an SVG of ``size`` with a margin for the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: width and height of a drawing: one of two side by side, one across the page, and the latter on a phone
HALF, FULL, PHONE = (420, 190), (1130, 300), (420, 260)
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 26
#: width of a character of the largest labels
_CHARACTER = 7.5
#: at most so many points of a line are drawn, and so many can be pointed at
MAX_POINTS, MAX_TARGETS = 600, 120

Pairs = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled place on an axis; ``anchor``: the text anchor that keeps the label inside the picture."""

    at: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Target:
    """A vertical band that shows its step and value when pointed at."""

    left: float
    width: float
    x: float
    y: float
    title: str
    label: str
    #: text anchor that keeps the label inside the picture
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing: paths in SVG syntax and everything around them.

    Attributes:
        width, height: of the drawing.
        line, faint, area: the curve; the raw curve behind a smoothed one (or ``""``); the surface below it.
        dots: points of a second series. ``holes``: x of values that are not finite.
        log: whether the vertical axis is logarithmic.
    """

    title: str
    unit: str
    width: int
    height: int
    line: str
    faint: str
    area: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    targets: list[Target]
    last: str
    log: bool = False
    dots: list[Target] = field(default_factory=list)
    dot_line: str = ""
    holes: list[float] = field(default_factory=list)


def make_chart(
    title: str,
    pairs: Pairs,
    *,
    unit: str = "",
    other: Pairs = (),
    smooth: bool = False,
    zero: bool = False,
    size: tuple[int, int] = HALF,
) -> Chart | None:
    """The chart of ``pairs`` (step, value); ``None`` where neither series has two finite values: one is no curve.

    Args:
        other: a second series drawn as dots (evaluations).
        smooth: draw a running mean over the raw curve when there are many points.
        zero: let the vertical axis begin at 0.
    """
    points = [(x, y) for x, y in pairs if math.isfinite(y)]
    extra = [(x, y) for x, y in other if math.isfinite(y)]
    if max(len(points), len(extra)) < 2:
        return None
    width, height = size
    steps, values = [x for x, _ in points + extra], [y for _, y in points + extra]
    log = not zero and min(values) > 0 and max(values) / min(values) > 1000
    low, high = value_range(values, zero=zero, log=log)
    to_x = _scale(min(steps), max(steps), LEFT, width - RIGHT)
    to_y = _scale(low, high, height - BOTTOM, TOP, log=log)
    smoothed = smooth and len(points) >= 30
    raw = _curve(points, to_x, to_y)
    line = _curve(running_mean(points, max(3, len(points) // 25)), to_x, to_y) if smoothed else raw
    return Chart(
        title=title,
        unit=unit,
        width=width,
        height=height,
        line=line,
        faint=raw if smoothed else "",
        area=_area(line, to_x, points, height - BOTTOM),
        x_ticks=[_x_tick(to_x(v), compact(v), width) for v in step_ticks(min(steps), max(steps))],
        y_ticks=[Tick(to_y(v), compact(v)) for v in (log_ticks(low, high) if log else nice_ticks(low, high))],
        targets=_targets(points, to_x, to_y, title, width),
        last=compact((points or extra)[-1][1]),
        log=log,
        dots=_targets(extra, to_x, to_y, f"evaluation {title}", width),
        dot_line=_curve(extra, to_x, to_y) if len(extra) > 1 else "",
        holes=[to_x(min(max(x, min(steps)), max(steps))) for x, y in pairs if not math.isfinite(y)],
    )


def _x_tick(at: float, label: str, width: int) -> Tick:
    """A step on the horizontal axis; one at the right edge ends there."""
    return Tick(at, label, "end" if at + len(label) * _CHARACTER / 2 > width else "middle")


def _curve(points: Pairs, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    return svg_path([(to_x(x), to_y(y)) for x, y in thin(points, MAX_POINTS)])


def _scale(low: float, high: float, start: float, end: float, *, log: bool = False) -> Callable[[float], float]:
    change: Callable[[float], float] = math.log10 if log else float
    first, last = change(low), change(high)
    span = last - first

    def scale(value: float) -> float:
        share = (change(value) - first) / span if span else 0.5
        return round(start + share * (end - start), 2)

    return scale


def value_range(values: Sequence[float], *, zero: bool = False, log: bool = False) -> tuple[float, float]:
    """Lowest and highest value of the axis: the data and a little air; never empty."""
    low, high = min(values), max(values)
    if log:
        return low / 1.15, high * 1.15
    if zero:
        low = min(low, 0.0)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if zero and low == 0 else low - air), high + air


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers within [low, high]."""
    rough = (high - low) / count
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high], every n-th where there would be more than six."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / 6))
    return [10.0**power for power in range(first, last + 1, stride)]


def step_ticks(low: int, high: int) -> list[float]:
    """Whole steps for the horizontal axis."""
    ticks = nice_ticks(low, high, 6)
    whole = sorted({round(tick) for tick in ticks if low <= round(tick) <= high})
    return [float(tick) for tick in whole] or [float(low)]


def thin(points: Pairs, limit: int) -> list[tuple[int, float]]:
    """At most ``limit`` points: lowest and highest of each stretch, so that spikes stay visible."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit // 2))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def running_mean(points: Pairs, width: int) -> list[tuple[int, float]]:
    """Centered mean over ``width`` points, one-sided at both ends (so that the last value is not just noise)."""
    half = width // 2
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    result = []
    for index, (step, _) in enumerate(points):
        start, end = max(0, index - half), min(len(points), index + half + 1)
        result.append((step, (sums[end] - sums[start]) / (end - start)))
    return result


def svg_path(points: Sequence[tuple[float, float]]) -> str:
    """``M x y L x y ...``; a single point becomes a visible dot of a round line end."""
    if not points:
        return ""
    pairs = [f"{x:g} {y:g}" for x, y in points]
    return "M" + " L".join(pairs) + (f" L{pairs[0]}" if len(pairs) == 1 else "")


def _area(line: str, to_x: Callable[[float], float], points: Pairs, floor: int) -> str:
    if len(points) < 2:
        return ""
    return f"{line} L{to_x(points[-1][0]):g} {floor} L{to_x(points[0][0]):g} {floor} Z"


def _targets(
    points: Pairs, to_x: Callable[[float], float], to_y: Callable[[float], float], title: str, width: int
) -> list[Target]:
    stride = math.ceil(len(points) / MAX_TARGETS) or 1
    chosen = list(points[::stride])
    targets = []
    for index, (step, value) in enumerate(chosen):
        x = to_x(step)
        left = LEFT if index == 0 else (to_x(chosen[index - 1][0]) + x) / 2
        right = width - RIGHT if index == len(chosen) - 1 else (x + to_x(chosen[index + 1][0])) / 2
        anchor = "start" if x < width * 0.3 else "end" if x > width * 0.7 else "middle"
        label = f"step {step} · {compact(value)}"
        targets.append(
            Target(round(left, 2), round(right - left, 2), x, to_y(value), f"{title}: {label}", label, anchor)
        )
    return targets


def compact(value: float) -> str:
    """A number in few characters: 1,240 · 22.5k · 3.1M · 0.0123 · 3e-05."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            divisor = 1e3 if letter == "k" else limit
            return f"{value / divisor:.4g}{letter}"
    if size and size < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"
