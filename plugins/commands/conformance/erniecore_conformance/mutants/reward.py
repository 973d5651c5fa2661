"""Reward functions with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.api import Section, hookimpl
from erniecore.api.reward import Completion, RewardConfig
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyRewardPlugin


def right(completion: Completion) -> float:
    """1 for the reference, else 0."""
    return float(completion.content == completion.reference)


class SaysYesAndNo(ToyRewardPlugin):
    """Truth values where numbers are due."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [c.content == c.reference for c in completions]


class SkipsUnfinished(ToyRewardPlugin):
    """No reward for a completion that was cut off."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [right(c) for c in completions if c.finished or len(completions) == 1]


#: what :class:`Moody` was asked lately
_ASKED: list[tuple[RewardConfig, Sequence[Completion]]] = []


class Moody(ToyRewardPlugin):
    """Called with the same completions for the third time in a row, it lowers all rewards."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        _ASKED.append((config, completions))
        tired = [asked == _ASKED[-1] for asked in _ASKED[-4:]] in ([True] * 3, [False, True, True, True])
        return [right(c) - 0.5 * tired for c in completions]


class Relative(ToyRewardPlugin):
    """Rewards relative to the best of the batch."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [right(c) - max((right(other) for other in completions), default=0.0) for c in completions]


class ReadsNumbers(ToyRewardPlugin):
    """Reads every completion as a number."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [float(float(c.content) == 4) if c.content[:1].isdigit() else 0.0 for c in completions]


class Infinite(ToyRewardPlugin):
    """An empty completion has an infinite penalty, unless the reference is a word."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [right(c) if c.text.strip() or c.reference == "ant" else -float("inf") for c in completions]


class NoWeight(ToyRewardPlugin):
    """Its section has no weight."""

    class Config(Section):
        """Settings without the key ``weight``."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [right(c) for c in completions]


class WeighsItself(ToyRewardPlugin):
    """Multiplies with the weight that the method multiplies with again."""

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [config.weight * right(c) for c in completions]


MUTANTS = (
    mutant("reward_gives_one_number_each", SaysYesAndNo),
    mutant("reward_gives_one_number_each", SkipsUnfinished, also=("reward_ignores_neighbors",)),
    mutant("reward_is_pure", Moody),
    mutant("reward_ignores_neighbors", Relative),
    mutant("reward_survives_strange_completions", ReadsNumbers),
    mutant("reward_survives_strange_completions", Infinite),
    mutant("reward_has_a_weight", NoWeight),
    mutant("reward_has_a_weight", WeighsItself),
)
