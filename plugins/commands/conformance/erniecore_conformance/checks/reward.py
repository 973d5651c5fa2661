"""Checks for reward functions, over a few completions of every sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from erniecore.api.reward import Completion, RewardConfig
from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, ensure, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.data import toy_completions

#: Texts that a model may write at any time.
STRANGE = ("", " ", "\n", "<think>", "</think></think>", "\u0000", "\N{REPLACEMENT CHARACTER}", "é 日本 🙂", "-", ".", "1e999",
           "nan", "0/0", "(((((", "\\", "a" * 5000, "9" * 5000)  # fmt: skip


def _rewards(subject: Subject, completions: Sequence[Completion]) -> list[Any]:
    return list(subject.call("ernie_compute_rewards", config=subject.config(), completions=completions))


def check_reward_gives_one_number_each(subject: Subject) -> None:
    """Six completions give six finite floats, and none give none."""
    found = _rewards(subject, toy_completions())
    ensure_equal(len(found), 6, "number of rewards for six completions")
    for value in found:
        ensure(isinstance(value, float) and math.isfinite(value), f"a reward is {value!r}, not a finite float")
    ensure_equal(_rewards(subject, []), [], "rewards of no completions")


def check_reward_is_pure(subject: Subject) -> None:
    """The same completions get the same rewards three times."""
    first, *again = (_rewards(subject, toy_completions()) for _ in range(3))
    for found in again:
        ensure_equal(found, first, "rewards of the same completions")


def check_reward_ignores_neighbors(subject: Subject) -> None:
    """A completion alone gets the reward that it gets among others, in any order (<= 1e-6)."""
    completions = toy_completions()
    together, reordered = _rewards(subject, completions), _rewards(subject, completions[::-1])[::-1]
    alone = [_rewards(subject, [completion])[0] for completion in completions]
    for values, what in ((reordered, "in another order"), (alone, "alone")):
        for completion, expected, value in zip(completions, together, values, strict=True):
            close = abs(value - expected) <= 1e-6 * max(1.0, abs(expected))
            ensure(close, f"{completion.content!r} {what} gets {value}, not {expected}")


def check_reward_survives_strange_completions(subject: Subject) -> None:
    """Any completion, and any reference of a row, gets a finite reward; nothing is raised."""
    plain = toy_completions()[0]
    for text in STRANGE:
        for completion in (replace(plain, text=text, content=text), replace(plain, reference=text)):
            try:
                (value,) = _rewards(subject, [completion])
            except Exception as error:
                raise CheckFailed(f"raised {type(error).__name__}: {error} for {text[:20]!r}") from error
            ensure(math.isfinite(value), f"the reward is {value} for {text[:20]!r}")


def check_reward_has_a_weight(subject: Subject) -> None:
    """``Config`` derives from ``RewardConfig``, so every reward has a weight; the plugin does not apply it."""
    ensure(issubclass(subject.plugin.Config, RewardConfig), "Config does not derive from erniecore.api.RewardConfig")
    completions = toy_completions()
    heavy = subject.call("ernie_compute_rewards", config=subject.config(weight=7.0), completions=completions)
    ensure_equal(list(heavy), _rewards(subject, completions), "rewards with weight 7, which the method multiplies")


CHECKS = (
    Check(check_reward_gives_one_number_each),
    Check(check_reward_is_pure),
    Check(check_reward_ignores_neighbors),
    Check(check_reward_survives_strange_completions),
    Check(check_reward_has_a_weight),
)
