"""Checks for scorers, over a few answers of every sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from erniecore.plugin import ScorerConfig
from erniecore.testing.expect import CheckFailed, ensure, ensure_equal
from erniecore.testing.runner import Check
from erniecore.testing.subjects import Subject
from erniecore.testing.toys.data import toy_attempts
from erniecore.types import Attempt

#: Texts that a model may write at any time.
STRANGE = ("", " ", "\n", "<think>", "</think></think>", "\u0000", "\N{REPLACEMENT CHARACTER}", "é 日本 🙂", "-", ".", "1e999",
           "nan", "0/0", "(((((", "\\", "a" * 5000, "9" * 5000)  # fmt: skip


def _scores(subject: Subject, attempts: Sequence[Attempt]) -> list[Any]:
    return list(subject.call("ernie_score_attempts", config=subject.config(), attempts=attempts))


def check_scorer_gives_one_number_each(subject: Subject) -> None:
    """Six answers give six finite floats, and no answers give none."""
    found = _scores(subject, toy_attempts())
    ensure_equal(len(found), 6, "number of scores for six answers")
    for value in found:
        ensure(isinstance(value, float) and math.isfinite(value), f"a score is {value!r}, not a finite float")
    ensure_equal(_scores(subject, []), [], "scores of no answers")


def check_scorer_is_pure(subject: Subject) -> None:
    """Scoring the same answers three times gives the same numbers."""
    first, *again = (_scores(subject, toy_attempts()) for _ in range(3))
    for found in again:
        ensure_equal(found, first, "scores of the same answers")


def check_scorer_ignores_neighbours(subject: Subject) -> None:
    """An answer alone gets the score that it gets among others, in whatever order (<= 1e-6)."""
    attempts = toy_attempts()
    together, turned = _scores(subject, attempts), _scores(subject, attempts[::-1])[::-1]
    alone = [_scores(subject, [attempt])[0] for attempt in attempts]
    for values, what in ((turned, "in another order"), (alone, "alone")):
        for attempt, expected, value in zip(attempts, together, values, strict=True):
            close = abs(value - expected) <= 1e-6 * max(1.0, abs(expected))
            ensure(close, f"{attempt.answer!r} {what} gets {value}, not {expected}")


def check_scorer_survives_strange_answers(subject: Subject) -> None:
    """Whatever a model writes, or a row holds as the right answer, gets a finite score; nothing is raised."""
    plain = toy_attempts()[0]
    for text in STRANGE:
        for attempt in (replace(plain, text=text, answer=text), replace(plain, reference=text)):
            try:
                (value,) = _scores(subject, [attempt])
            except Exception as error:
                raise CheckFailed(f"raised {type(error).__name__}: {error} for {text[:20]!r}") from error
            ensure(math.isfinite(value), f"the score is {value} for {text[:20]!r}")


def check_scorer_has_a_weight(subject: Subject) -> None:
    """``Config`` derives from ``ScorerConfig``, so every score has a weight; scores come without it."""
    ensure(issubclass(subject.plugin.Config, ScorerConfig), "Config does not derive from erniecore.api.ScorerConfig")
    attempts = toy_attempts()
    heavy = subject.call("ernie_score_attempts", config=subject.config(weight=7.0), attempts=attempts)
    ensure_equal(list(heavy), _scores(subject, attempts), "scores with weight 7, which the method multiplies")


CHECKS = (
    Check(check_scorer_gives_one_number_each),
    Check(check_scorer_is_pure),
    Check(check_scorer_ignores_neighbours),
    Check(check_scorer_survives_strange_answers),
    Check(check_scorer_has_a_weight),
)
