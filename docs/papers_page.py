"""The pages of ``explanation/papers`` from ``data/papers/NAME.json``: the table of all experiments, and for each one its block
(question, rule, verdict, table) between the markers of its page, and its drawings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from erniecore_report.chart import compact, nice_ticks, svg_path, value_range

START, END = "<!-- experiment:start -->\n", "<!-- experiment:end -->"
#: width and height of a drawing, its margins, and the height of a line of names
_SIZE, _LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = (720, 340), 70, 16, 14, 40, 16
#: told apart by readers who do not see all colors, in light and dark pages
_COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d", "#92400e", "#64748b")

Record = Mapping[str, Any]


def pages(root: Path) -> dict[str, Callable[[], str]]:
    """Path -> its text, for every experiment that was run. Raises ``FileNotFoundError`` for one without a page."""
    home, data = "docs/explanation/papers", root / "docs" / "data" / "papers"
    found: dict[str, Callable[[], str]] = {f"{home}/README.md": lambda: index(root / home / "README.md", data)}
    for file in sorted(data.glob("*.json")):
        found[f"{home}/{file.stem}.md"] = partial(page, root / home / f"{file.stem}.md", file)
        for drawing in drawings(read(file)):
            found[f"{home}/{drawing}"] = partial(_drawing, file, drawing)
    return found


def read(file: Path) -> Record:
    """The record of an experiment."""
    found: Record = json.loads(file.read_text(encoding="utf-8"))
    return found


def index(readme: Path, data: Path) -> str:
    """The README with the table of all experiments between its markers."""
    rows = ["| experiment | question | verdict | page |", "|---|---|---|---|"]
    for one in map(read, sorted(data.glob("*.json"))):
        rows.append(f"| {one['title']} | {one['question']} | *{one['verdict']}* | [{one['name']}]({one['name']}.md) |")
    return _between(readme, "\n".join(rows) if len(rows) > 2 else "None was run yet.")


def page(path: Path, file: Path) -> str:
    """The page of an experiment with a fresh block between its markers."""
    return _between(path, block(read(file)))


def block(one: Record) -> str:
    """Question, rule, verdict, what was run, the table of arms and the drawings."""
    seeds = f"{len(one['seeds'])} seed{'s' * (len(one['seeds']) != 1)}"
    lines = [
        f"**Question**: {one['question']}",
        "",
        f"**Rule**, written before the run: {one['rule']}",
        "",
        f"**Verdict**: *{one['verdict']}*. {one['reason']}",
        "",
        f"**Run**: {one['size']} {seeds}; commit {one['commit']}. `python -m benchmarks.papers {one['name']} "
        f"--seeds {len(one['seeds'])} --steps {one['steps']}`",
        "",
        *table(one),
        "",
        *(f"- {measure}: {meaning}" for measure, meaning in one["measures"].items()),
        "",
        f"Means over seeds; in parentheses the mean of the differences from *{one['baseline']}*, seed by seed, with its 95 % "
        "interval (Student's t). The bootstrap intervals are in the JSON file.",
    ]
    for name in drawings(one):
        lines += ["", f"![{one['title']}: {name.removesuffix('.svg')}]({name})"]
    return "\n".join(lines)


def table(one: Record) -> list[str]:
    """Markdown: a line per arm."""
    pairs = {(pair["arm"], pair["measure"]): pair for pair in one["comparisons"]}
    rows = [f"| arm | {' | '.join(one['measures'])} |", "|---" * (len(one["measures"]) + 1) + "|"]
    for arm in one["arms"]:
        cells = []
        for measure in one["measures"]:
            values = one["values"][arm][measure]
            cells.append(f"{sum(values) / len(values):.4g}{_difference(pairs.get((arm, measure)))}")
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    return rows


def _difference(pair: Record | None) -> str:
    if pair is None:
        return ""
    ends = f"; {pair['t95'][0]:+.3g} … {pair['t95'][1]:+.3g}" if pair["t95"] else "; one seed: no interval"
    return f" ({pair['mean']:+.3g}{ends})"


def drawings(one: Record) -> list[str]:
    """Names of the files: the differences in the first measure, then the curves."""
    return [f"{one['name']}.svg", *(f"{one['name']}-{name}.svg" for name in one["curves"])]


def _drawing(file: Path, name: str) -> str:
    one = read(file)
    if name == f"{one['name']}.svg":
        return differences(one)
    curve = name.removeprefix(f"{one['name']}-").removesuffix(".svg")
    return curves(one["curves"][curve], *one["axes"][curve])


def differences(one: Record) -> str:
    """SVG: for every arm its difference from the baseline in the first measure, a dot per seed and a bar for the interval."""
    measure, base = next(iter(one["measures"])), one["baseline"]
    arms = [arm for arm in one["arms"] if arm != base]
    start = one["values"][base][measure]
    dots = {arm: [a - b for a, b in zip(one["values"][arm][measure], start, strict=True)] for arm in arms}
    means = {pair["arm"]: pair for pair in one["comparisons"] if pair["measure"] == measure}
    bars = {arm: means[arm]["t95"] or [means[arm]["mean"]] * 2 for arm in arms}
    every = [value for arm in arms for value in (*dots[arm], *bars[arm])]
    height, left = 26 * len(arms) + _TOP + _BOTTOM, 170
    to_x = _scale(value_range([*every, 0.0]), left, _SIZE[0] - _RIGHT)
    floor = height - _BOTTOM
    drawn = _x_axis([*every, 0.0], to_x, floor, f"{measure}, minus that of {base}", left)
    drawn.append(f'<path d="M{to_x(0.0):g} {_TOP} V{floor}" stroke="#64748b" stroke-dasharray="3 3"/>')
    for row, arm in enumerate(arms):
        y, color = _TOP + 13 + 26 * row, _COLORS[row % len(_COLORS)]
        low, high = bars[arm]
        drawn += [
            _text(left - 8, y + 4, arm, "end"),
            f'<path d="M{to_x(low):g} {y} H{to_x(high):g}" stroke="{color}" stroke-width="3"/>',
            *(f'<circle cx="{to_x(v):g}" cy="{y}" r="3" fill="{color}" fill-opacity="0.45"/>' for v in dots[arm]),
            f'<circle cx="{to_x(means[arm]["mean"]):g}" cy="{y}" r="4.5" fill="{color}"/>',
        ]
    return _svg(height, drawn)


def curves(lines: Mapping[str, Sequence[Sequence[float]]], x_name: str, y_name: str) -> str:
    """SVG: a line per arm, with their names below."""
    xs, ys = ([point[axis] for line in lines.values() for point in line] for axis in (0, 1))
    height = _SIZE[1] + _LINE * -(-len(lines) // 3)
    floor = _SIZE[1] - _BOTTOM
    to_x, to_y = _scale((min(xs), max(xs)), _LEFT, _SIZE[0] - _RIGHT), _scale(value_range(ys), floor, _TOP)
    drawn = _x_axis(xs, to_x, floor, x_name, _LEFT)
    for tick in nice_ticks(*value_range(ys)):
        y = to_y(tick)
        drawn += [_grid(f"M{_LEFT} {y:g} H{_SIZE[0] - _RIGHT}"), _text(_LEFT - 6, y + 4, compact(tick), "end")]
    drawn.append(_text(4, _TOP - 2, y_name, "start"))
    for row, (arm, line) in enumerate(lines.items()):
        color, path = _COLORS[row % len(_COLORS)], svg_path([(to_x(x), to_y(y)) for x, y in line])
        x, y = _LEFT + row % 3 * 210, _SIZE[1] + 10 + row // 3 * _LINE
        drawn += [
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.8" stroke-linecap="round"/>',
            f'<path d="M{x} {y - 4} h14" stroke="{color}" stroke-width="3"/>',
            _text(x + 20, y, arm, "start"),
        ]
    return _svg(height, drawn)


def _x_axis(values: Sequence[float], to_x: Callable[[float], float], floor: int, name: str, left: int) -> list[str]:
    drawn = []
    for tick in nice_ticks(min(values), max(values)):
        drawn += [_grid(f"M{to_x(tick):g} {_TOP} V{floor}"), _text(to_x(tick), floor + 16, compact(tick), "middle")]
    return [*drawn, _text((left + _SIZE[0] - _RIGHT) / 2, floor + 33, name, "middle")]


def _scale(ends: tuple[float, float], start: float, end: float) -> Callable[[float], float]:
    low, high = ends
    return lambda value: round(start + (value - low) / ((high - low) or 1.0) * (end - start), 2)


def _grid(path: str) -> str:
    return f'<path d="{path}" stroke="#cbd5e1" stroke-width="0.6"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, drawn: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE[0]} {height}" font-family="sans-serif" font-size="12" '
        'fill="#374151">'
    )
    ground = f'<rect width="{_SIZE[0]}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, *drawn, "</svg>"]) + "\n"


def _between(path: Path, text: str) -> str:
    head, rest = path.read_text(encoding="utf-8").split(START)
    return head + START + "\n" + text + "\n\n" + END + rest.split(END, 1)[1]
