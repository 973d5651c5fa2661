"""Scorers with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.config.section import Section
from erniecore.plugin import ScorerConfig, hookimpl
from erniecore.testing.mutants.mutant import mutant
from erniecore.testing.toys.others import ToyScorerPlugin
from erniecore.types import Attempt


def right(attempt: Attempt) -> float:
    """1 for the reference, else 0."""
    return float(attempt.answer == attempt.reference)


class SaysYesAndNo(ToyScorerPlugin):
    """Truth values where numbers are due."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [a.answer == a.reference for a in attempts]


class SkipsUnfinished(ToyScorerPlugin):
    """No score for an answer that was cut off."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [right(a) for a in attempts if a.finished or len(attempts) == 1]


#: what :class:`Moody` was asked lately
_ASKED: list[tuple[ScorerConfig, Sequence[Attempt]]] = []


class Moody(ToyScorerPlugin):
    """Asked the same for the third time in a row, it thinks less of all answers."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        _ASKED.append((config, attempts))
        tired = [asked == _ASKED[-1] for asked in _ASKED[-4:]] in ([True] * 3, [False, True, True, True])
        return [right(a) - 0.5 * tired for a in attempts]


class Relative(ToyScorerPlugin):
    """Scores compared with the best of the batch."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [right(a) - max((right(b) for b in attempts), default=0.0) for a in attempts]


class ReadsNumbers(ToyScorerPlugin):
    """Takes every answer for a number or nothing at all."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [float(float(a.answer) == 4) if a.answer[:1].isdigit() else 0.0 for a in attempts]


class Infinite(ToyScorerPlugin):
    """An empty answer is infinitely bad, if there is anything to say."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [right(a) if a.text.strip() or a.reference == "ant" else -float("inf") for a in attempts]


class NoWeight(ToyScorerPlugin):
    """Its section has no weight."""

    class Config(Section):
        """Empty."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [right(a) for a in attempts]


class WeighsItself(ToyScorerPlugin):
    """Multiplies with the weight that the method multiplies with again."""

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        return [config.weight * right(a) for a in attempts]


MUTANTS = (
    mutant("scorer_gives_one_number_each", SaysYesAndNo),
    mutant("scorer_gives_one_number_each", SkipsUnfinished, also=("scorer_ignores_neighbours",)),
    mutant("scorer_is_pure", Moody),
    mutant("scorer_ignores_neighbours", Relative),
    mutant("scorer_survives_strange_answers", ReadsNumbers),
    mutant("scorer_survives_strange_answers", Infinite),
    mutant("scorer_has_a_weight", NoWeight),
    mutant("scorer_has_a_weight", WeighsItself),
)
