"""Two models on the same rows: is the difference more than chance? Paired bootstrap and McNemar's exact test; numpy alone.

Rows are resampled, not tokens: what belongs to one row stays together, and each model sees the same rows. Sources: the
percentile interval and the bootstrap of a ratio are those of Efron and Tibshirani, An Introduction to the Bootstrap (1993),
chapter 13; resampling the pairs is Koehn, Statistical Significance Tests for Machine Translation Evaluation (2004); the test on
right and wrong is McNemar, Psychometrika 12 (1947), in its exact binomial form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erniecore.api import DataError, shorten

#: resamples of the bootstrap
RESAMPLES = 2000
#: resamples that are held at once
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """What one model got on one row.

    Attributes:
        id: which row. digest: of its content; two models must have seen the same.
        loss, weight: sum of the loss, and of what it is divided by, e.g. tokens; None: not measured.
        text_bytes: UTF-8 bytes of what the loss is about. correct: None: not measured.
        scores: further numbers by name.
    """

    id: str
    digest: str
    group: str = ""
    loss: float | None = None
    weight: float = 1.0
    text_bytes: int = 0
    correct: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


Pairs = Sequence[tuple[ScoredRow, ScoredRow]]


def paired(a: Sequence[ScoredRow], b: Sequence[ScoredRow]) -> list[tuple[ScoredRow, ScoredRow]]:
    """The rows of both, side by side in the order of ``a``.

    Raises:
        DataError: rows that only one has, that have other contents, or that occur twice.
    """
    others = {row.id: row for row in b}
    first = {row.id: row for row in a}
    if len(others) < len(b) or len(first) < len(a):
        raise DataError("a row occurs twice", where="--compare", fix="name samples of one evaluation")
    if alone := sorted(first.keys() ^ others.keys()):
        raise DataError(
            "the two were not evaluated on the same rows",
            where="--compare",
            found=f"{len(alone)} rows that only one has, e.g. {shorten(alone[0])}",
            fix="evaluate both on the same data, with the same --limit and --seed",
        )
    if changed := [row.id for row in a if others[row.id].digest != row.digest]:
        raise DataError(
            "the rows of the two have other contents",
            where="--compare",
            found=f"{len(changed)} rows, e.g. {shorten(changed[0])}",
            fix="evaluate both on the same files",
        )
    return [(row, others[row.id]) for row in a]


def compare(pairs: Pairs, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """What was measured of both models on these rows, as a JSON object.

    ``loss`` is per token, or ``bits_per_byte`` where the two cut the text into other tokens; ``accuracy`` has McNemar's p
    beside the bootstrap's, ``scores`` the means of further numbers. Each has ``a``, ``b``, ``difference`` = b - a, its 95 %
    interval ``low`` to ``high`` and ``p``, two-sided.
    """
    body: dict[str, Any] = {"rows": len(pairs)}
    how: Any = {"resamples": resamples, "seed": seed}
    lossy = [(a, b) for a, b in pairs if a.loss is not None and b.loss is not None]
    if lossy:
        losses = np.array([[a.loss, b.loss] for a, b in lossy], np.float64)
        same = all(a.weight == b.weight for a, b in lossy)
        weights = np.array(
            [[a.weight, b.weight] if same else [a.text_bytes, b.text_bytes] for a, b in lossy], np.float64
        )
        if weights.sum(axis=0).all():
            name = "loss" if same else "bits_per_byte"
            body[name] = bootstrap(losses if same else losses / math.log(2), weights, **how)
    judged = [(a.correct, b.correct) for a, b in pairs if a.correct is not None and b.correct is not None]
    if judged:
        right = np.array(judged, np.float64)
        only = {"only_a": sum(x and not y for x, y in judged), "only_b": sum(y and not x for x, y in judged)}
        p = mcnemar(only["only_a"], only["only_b"])
        body["accuracy"] = {**bootstrap(right, np.ones_like(right), **how), **only, "mcnemar_p": p}
    names = dict.fromkeys(name for pair in pairs for name in pair[0].scores if name in pair[1].scores)
    for name in names:
        values = np.array([[a.scores[name], b.scores[name]] for a, b in pairs if name in a.scores and name in b.scores])
        body.setdefault("scores", {})[name] = bootstrap(values, np.ones_like(values), **how)
    return body


def bootstrap(values: NDArray[Any], weights: NDArray[Any], *, resamples: int, seed: int) -> dict[str, float]:
    """The weighted means of two columns, b - a, its percentile interval and a two-sided p over resampled rows.

    Args:
        values, weights: float64 [n, 2]; a mean is the sum of values over the sum of weights.
    """
    n = len(values)
    means = values.sum(axis=0) / weights.sum(axis=0)
    rng = np.random.default_rng(seed)
    found = []
    for begin in range(0, resamples, _BLOCK):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(_BLOCK, resamples - begin)).astype(np.float64)
        totals = counts @ weights
        drawn = (counts @ values)[totals.all(axis=1)] / totals[totals.all(axis=1)]
        found.append(drawn[:, 1] - drawn[:, 0])
    differences = np.concatenate(found)
    low, high = np.percentile(differences, [2.5, 97.5])
    # the observed rows count as one more sample, so p is never 0 (Davison and Hinkley 1997, 4.2)
    tails = [(1 + int(np.sum(side))) / (1 + len(differences)) for side in (differences <= 0, differences >= 0)]
    return {
        "a": float(means[0]),
        "b": float(means[1]),
        "difference": float(means[1] - means[0]),
        "low": float(low),
        "high": float(high),
        "p": min(1.0, 2 * min(tails)),
    }


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p of McNemar's test: the rows that one alone gets right are a fair coin's throws.

    Args:
        only_a, only_b: rows that are right in one and wrong in the other.
    """
    n, least = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return min(1.0, 2 * tail / 2**n) if n else 1.0
