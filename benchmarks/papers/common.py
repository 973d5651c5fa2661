"""What every experiment on a paper's claim shares: arms by seeds, paired differences with their intervals, a verdict by a rule
that was written down before, and the file ``docs/data/papers/NAME.json``, from which ``docs/papers_page.py`` makes table and
plot.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.intervals import bootstrap, interval

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data" / "papers"
Verdict = Literal["seen", "not seen", "contrary"]
#: (x, y) in the order of x
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Found:
    """What one arm gave with one seed.

    Attributes:
        values: measure -> number.
        curves: name of a plot -> its line; drawn as the mean over seeds.
    """

    values: Mapping[str, float]
    curves: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """``arm`` minus ``baseline`` in one measure, seed by seed."""

    arm: str
    baseline: str
    measure: str
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean difference over seeds."""
        return interval(self.differences)[0]

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the 95 % interval of the mean (Student's t)."""
        mean, half = interval(self.differences)
        return mean - half, mean + half

    def __format__(self, spec: str) -> str:
        """The mean, and the ends of its interval in parentheses, each by ``spec``."""
        low, high = self.ends
        return f"{self.mean:{spec}} ({low:{spec}} … {high:{spec}})"

    def judged(self, better: Literal["lower", "higher"] = "lower") -> Verdict:
        """``seen``: the whole interval is on the better side of 0; ``contrary``: on the other side; else ``not seen``."""
        low, high = self.ends if better == "lower" else tuple(-end for end in reversed(self.ends))
        return "seen" if high < 0 else "contrary" if low > 0 else "not seen"


class Results:
    """All runs of an experiment: (arm, seed) -> what was found."""

    def __init__(self, runs: Mapping[tuple[str, int], Found]) -> None:
        self.runs = dict(runs)

    def values(self, arm: str, measure: str) -> dict[int, float]:
        """A measure of one arm by seed."""
        return {seed: one.values[measure] for (name, seed), one in sorted(self.runs.items()) if name == arm}

    def mean(self, arm: str, measure: str) -> float:
        """The mean of a measure over the seeds of one arm."""
        return statistics.mean(self.values(arm, measure).values())

    def compare(self, arm: str, baseline: str, measure: str) -> Comparison:
        """Paired by seed; raises ``ValueError`` where the two arms have other seeds."""
        ours, theirs = self.values(arm, measure), self.values(baseline, measure)
        if ours.keys() != theirs.keys():
            raise ValueError(f"{arm} has seeds {sorted(ours)}, {baseline} has {sorted(theirs)}: they cannot be paired")
        return Comparison(arm, baseline, measure, tuple(ours[seed] - theirs[seed] for seed in ours))


@dataclass(frozen=True)
class Experiment:
    """One experiment; a module of this package has it as ``EXPERIMENT``. ``rule`` is written before the first run and stays.

    Attributes:
        name: of the command, the page and the files; the module has underscores for its dashes.
        question: what the paper claims, as a question.
        rule: when the claim counts as seen, as not seen, as contrary.
        size: model, data and steps, with ``{steps}`` for the number of steps.
        baseline: the arm that others are compared with. arms: all of them, in the order of the table.
        measures: measure -> what it is and its unit, in the order of the columns.
        run: (arm, seed, steps, directory that is kept) -> what was found. Arms of one seed have the same data and start.
        judge: verdict and its reason, in figures, by ``rule``.
        seeds, steps: what runs when nobody says.
        axes: name of a plot -> (x axis, y axis).
    """

    name: str
    title: str
    question: str
    rule: str
    size: str
    baseline: str
    arms: Sequence[str]
    measures: Mapping[str, str]
    run: Callable[[str, int, int, Path], Found]
    judge: Callable[[Results], tuple[Verdict, str]]
    seeds: int = 5
    steps: int = 200
    axes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def measure_all(experiment: Experiment, seeds: int, steps: int, out: Path) -> Results:
    """Every arm with every seed, seed by seed. What ``out`` has already, of this number of steps, is not run again."""
    runs: dict[tuple[str, int], Found] = {}
    out.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        for arm in experiment.arms:
            file = out / f"{arm.replace(' ', '-').replace('/', '-')}-{seed}-{steps}.json"
            if not file.is_file():
                found = experiment.run(arm, seed, steps, out)
                content = json.dumps({"values": dict(found.values), "curves": dict(found.curves)})
                file.write_text(content + "\n", encoding="utf-8")
            kept = json.loads(file.read_text(encoding="utf-8"))
            curves = {name: [(x, y) for x, y in line] for name, line in kept["curves"].items()}
            runs[arm, seed] = Found(kept["values"], curves)
            print(json.dumps({"arm": arm, "seed": seed, **kept["values"]}), flush=True)
    return Results(runs)


def record(experiment: Experiment, results: Results, steps: int) -> dict[str, Any]:
    """The content of the JSON file."""
    seeds = sorted({seed for _, seed in results.runs})
    verdict, reason = experiment.judge(results)
    others = [arm for arm in experiment.arms if arm != experiment.baseline]
    pairs = [results.compare(arm, experiment.baseline, one) for arm in others for one in experiment.measures]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "rule": experiment.rule,
        "size": experiment.size.format(steps=steps),
        "commit": _commit(),
        "seeds": seeds,
        "steps": steps,
        "baseline": experiment.baseline,
        "arms": list(experiment.arms),
        "measures": dict(experiment.measures),
        "values": {
            arm: {one: list(results.values(arm, one).values()) for one in experiment.measures}
            for arm in experiment.arms
        },
        "comparisons": [_written(pair) for pair in pairs],
        "axes": {name: list(pair) for name, pair in experiment.axes.items()},
        "curves": {
            name: {arm: line for arm in experiment.arms if (line := _mean_curve(results, arm, name))}
            for name in experiment.axes
        },
        "verdict": verdict,
        "reason": reason,
    }


def write(content: Mapping[str, Any], data: Path = DATA) -> Path:
    """The JSON file, with a line of its own for every list of numbers."""
    data.mkdir(parents=True, exist_ok=True)
    file = data / f"{content['name']}.json"
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def _written(pair: Comparison) -> dict[str, Any]:
    ends = None if any(math.isinf(end) for end in pair.ends) else [_short(end) for end in pair.ends]
    resampled = [_short(end) for end in bootstrap(pair.differences)]
    return {"arm": pair.arm, "measure": pair.measure, "mean": _short(pair.mean), "t95": ends, "bootstrap95": resampled}


def _mean_curve(results: Results, arm: str, name: str) -> list[list[float]]:
    """The mean over seeds where all seeds have the same x."""
    lines = [
        one.curves[name] for (which, _), one in sorted(results.runs.items()) if which == arm and name in one.curves
    ]
    return [[points[0][0], _short(statistics.mean(y for _, y in points))] for points in zip(*lines, strict=True)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"
