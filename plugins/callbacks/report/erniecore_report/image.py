"""``loss.png``: the loss and the most telling metrics of a run as an image, from the same charts as the page. Pillow draws them:
at the end of a run it takes 0.04 s and 6 MiB to import.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_runs.record import RunRecord

from erniecore_report.chart import BOTTOM, LEFT, RIGHT, TOP, Chart, make_chart
from erniecore_report.panels import IN_IMAGE, panels

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

PLOT_NAME = "loss.png"
#: width and height of a chart: alone, and one of several
_ONE, _SEVERAL = (800, 400), (560, 320)
#: space above a chart for its name, and above all charts for that of the run
_NAME, _HEAD = 22, 30
#: pixels per unit of a chart, in the file; curves are drawn at twice that, and averaged
_PIXELS = 2
_BLUE, _FAINT, _AMBER = (37, 99, 235), (177, 199, 247), (217, 119, 6)
_TEXT, _GRID, _WHITE = (55, 65, 81), (229, 231, 235), (255, 255, 255)


def draw_loss(record: RunRecord, target: Path) -> str:
    """Write the image; returns ``""``, or why there is none."""
    names = ["loss", *panels(record)[:IN_IMAGE]]
    size = _ONE if len(names) == 1 else _SEVERAL
    made = [
        make_chart(name, record.series(name), other=record.eval_series(name), smooth=True, size=size) for name in names
    ]
    charts = [chart for chart in made if chart is not None]
    if made[0] is None:
        return f"no {PLOT_NAME}: the run has no two finite losses yet"
    from PIL import Image, ImageDraw

    columns = min(len(charts), 2)
    width, height = columns * size[0], _HEAD + -(-len(charts) // columns) * (_NAME + size[1])
    scale = 2 * _PIXELS
    image = Image.new("RGB", (width * scale, height * scale), _WHITE)
    pen = Pen(ImageDraw.Draw(image), scale)
    pen.text(10, _HEAD - 8, record.name, 15, "ls")
    for index, chart in enumerate(charts):
        pen.left = index % columns * size[0]
        pen.top = _HEAD + index // columns * (_NAME + size[1]) + _NAME
        _draw(pen, chart)
    image.resize((width * _PIXELS, height * _PIXELS), Image.Resampling.LANCZOS).save(target, format="PNG")
    return ""


class Pen:
    """Draws in the coordinates of the chart whose corner is at (``left``, ``top``)."""

    def __init__(self, draw: ImageDraw, scale: int) -> None:
        self.draw, self.scale, self.left, self.top = draw, scale, 0, 0
        self._fonts: dict[int, Any] = {}

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (self.left + x) * self.scale, (self.top + y) * self.scale

    def line(self, points: list[tuple[float, float]], color: tuple[int, int, int], width: float) -> None:
        """A line through ``points``."""
        pixels = max(1, round(width * self.scale))
        self.draw.line([self._at(x, y) for x, y in points], fill=color, width=pixels, joint="curve")

    def dot(self, x: float, y: float, radius: float, color: tuple[int, int, int]) -> None:
        """A filled circle around (x, y)."""
        self.draw.ellipse([self._at(x - radius, y - radius), self._at(x + radius, y + radius)], fill=color)

    def text(self, x: float, y: float, text: str, size: int, anchor: str) -> None:
        """A text at (x, y); ``anchor`` as Pillow names it, for example ``rm``: the right end, the middle."""
        from PIL import ImageFont

        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * self.scale)
        self.draw.text(self._at(x, y), text, fill=_TEXT, font=self._fonts[size], anchor=anchor)


def _draw(pen: Pen, chart: Chart) -> None:
    """One chart: grid, labels, the raw curve behind its running mean, and the evaluations as dots."""
    unit = f" ({chart.unit})" if chart.unit else ""
    pen.text(10, -5, f"{chart.title}{unit} by step", 13, "ls")
    for tick in chart.y_ticks:
        pen.line([(LEFT, tick.at), (chart.width - RIGHT, tick.at)], _GRID, 0.5)
        pen.text(LEFT - 6, tick.at, tick.label, 11, "rm")
    floor = chart.height - BOTTOM
    pen.line([(LEFT, TOP), (LEFT, floor), (chart.width - RIGHT, floor)], _GRID, 1)
    for tick in chart.x_ticks:
        pen.text(tick.at, floor + 6, tick.label, 11, {"middle": "ma", "end": "ra"}[tick.anchor])
    for path, color, width in ((chart.faint, _FAINT, 1), (chart.line, _BLUE, 1.6), (chart.dot_line, _AMBER, 1)):
        if path:
            pen.line(points_of(path), color, width)
    for dot in chart.dots:
        pen.dot(dot.x, dot.y, 3, _AMBER)
    if chart.dots:
        pen.text(chart.width - RIGHT, -5, "evaluation", 11, "rs")
        pen.dot(chart.width - RIGHT - 62, -9, 3, _AMBER)


def points_of(path: str) -> list[tuple[float, float]]:
    """The points of an SVG path that :func:`erniecore_report.chart.svg_path` has made."""
    pairs = (pair.split() for pair in path.removeprefix("M").split(" L"))
    return [(float(x), float(y)) for x, y in pairs]
