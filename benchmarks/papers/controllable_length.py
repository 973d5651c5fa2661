"""Texts of a length that was asked for (ERNIE 3.0 Titan, arXiv:2112.12731): how far a controllable model misses the number L of
words of its prompt "About L words", by L. The models are those of the experiment ``controllable``: with its ``--out``, they are
not trained again.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import mean

from benchmarks.papers.common import Comparison, Experiment, Found, Results, Verdict
from benchmarks.papers.controllable import CONTROLLABLE, TOPICS, model_of, written
from benchmarks.papers.controllable import EXPERIMENT as TRAINED

LENGTHS = (3, 6, 12, 18, 24)
#: texts of each length
TEXTS = 100
ASKED, DROPPED = "length asked", "length dropped"


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Texts of one model; what is not asked for is compared with the same lengths."""
    from erniecore.api.run import open_model

    bundle = open_model(model_of(CONTROLLABLE, seed, steps, out)[0] / "model")
    wanted = [length for length in LENGTHS for _ in range(TEXTS)]
    known = [{"topic": TOPICS[i % len(TOPICS)]} for i in range(len(wanted))]
    if arm == ASKED:
        known = [{**one, "words": length} for one, length in zip(known, wanted, strict=True)]
    counts = [len(text.split()) for text in written(bundle, known, seed)]
    errors = {
        length: mean(abs(n - length) for n, w in zip(counts, wanted, strict=True) if w == length) for length in LENGTHS
    }
    lengths = {length: mean(n for n, w in zip(counts, wanted, strict=True) if w == length) for length in LENGTHS}
    values = {"error": mean(errors.values()), **{measure(length): value for length, value in errors.items()}}
    return Found(values, {"error": _line(errors), "written": _line(lengths)})


def measure(length: int) -> str:
    """Name of the measure of one L."""
    return f"error at {length}"


def _line(values: dict[int, float]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in values.items()]


def judge(results: Results) -> tuple[Verdict, str]:
    """By the order of the means, and the interval between the ends."""
    errors = [results.mean(ASKED, measure(length)) for length in LENGTHS]
    ends = [results.values(ASKED, measure(length)) for length in (LENGTHS[0], LENGTHS[-1])]
    pair = Comparison(ASKED, ASKED, "error", tuple(ends[1][seed] - ends[0][seed] for seed in ends[0]))
    rises = all(a <= b for a, b in pairwise(errors))
    judged = pair.judged("higher")
    verdict: Verdict = "not seen" if judged == "seen" and not rises else judged
    told = ", ".join(f"{error:.2f} at {length}" for length, error in zip(LENGTHS, errors, strict=True))
    gain = results.compare(ASKED, DROPPED, "error")
    return verdict, (
        f"Mean error in words: {told}; from {LENGTHS[0]} to {LENGTHS[-1]} it changes by {pair:+.2f}. Asking for a "
        f"length changes the error by {gain.mean:+.2f} words ({gain.ends[0]:+.2f} … {gain.ends[1]:+.2f}) against not asking."
    )


EXPERIMENT = Experiment(
    name="controllable-length",
    title="Length of controllable texts",
    question="Does the error of the length grow with the length L that is asked for (ERNIE 3.0 Titan, arXiv:2112.12731)?",
    rule=f"L is the number of words that the prompt asks for, one of {', '.join(map(str, LENGTHS))}; the error is the mean of "
    "|words of the text − L|. seen where the means over seeds never fall from one L to the next, and the 95 % interval of the "
    "error at the largest L minus that at the smallest is above 0; contrary where that interval is below 0; else not seen. That "
    "asking helps at all is told beside it.",
    size=f"The model *controllable* of the experiment of that name, {{steps}} steps; {TEXTS} texts of each L and seed, sampled "
    "at temperature 1, each with a topic. Training texts have 3 to 24 words, as many of each length.",
    baseline=DROPPED,
    arms=(DROPPED, ASKED),
    measures={
        "error": "mean over all L of the mean |words − L|; without asking, of the same L",
        **{measure(length): "mean |words − L|" for length in LENGTHS},
    },
    run=run,
    judge=judge,
    seeds=TRAINED.seeds,
    steps=TRAINED.steps,
    axes={"error": ("L", "mean error, words"), "written": ("L", "mean words of a text")},
)
