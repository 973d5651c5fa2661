"""Verifiable reward functions: plugin objects and their settings. Plain Python, no models.

Every function takes any text: a completion that cannot be parsed gets no reward.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from erniecore.api import ConfigError, Field, Plugin, hookimpl
from erniecore.api.patterns import PatternMatcher, PatternTimeout, compile_pattern
from erniecore.api.reward import Completion, RewardConfig

#: 12, -0.5, 1,234.5, .5e-3; of 3-4 the second is 4
NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)"
)
#: characters that are searched at most
SEARCHED = 100_000
#: processor time of a regular expression and a completion
SECONDS = 2.0


class VerifiableReward(Plugin):
    """A reward function that takes one completion at a time."""

    kind = "reward"

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        """One number per completion, by the function of ``FUNCTIONS``."""
        function = FUNCTIONS[self.name]
        return [function(config, completion) for completion in completions]


class TextConfig(RewardConfig):
    """Section of reward functions that compare texts."""

    ignore_case: bool = Field(False, description="Upper and lower case are the same.")


def plain(text: str, config: TextConfig) -> list[str]:
    """Words, in lower case if that does not matter."""
    return (text.casefold() if config.ignore_case else text).split()


def exact(config: TextConfig, completion: Completion) -> float:
    """1 for the reference, up to whitespace."""
    return float(plain(completion.content, config) == plain(completion.reference, config))


def contained(config: TextConfig, completion: Completion) -> float:
    """1 where the reference's words are in the completion, next to each other."""
    wanted, found = plain(completion.reference, config), plain(completion.content, config)
    n = len(wanted)
    return float(bool(n) and any(found[i : i + n] == wanted for i in range(len(found) - n + 1)))


class ExactMatch(VerifiableReward):
    """The completion is the reference."""

    name, summary = "exact-match", "1 where the completion is the reference, up to whitespace"
    Config = TextConfig


class Contains(VerifiableReward):
    """The completion contains the reference."""

    name, summary = "contains", "1 where the words of the reference are in the completion"
    Config = TextConfig


class RegexConfig(RewardConfig):
    """Settings of the reward ``regex``."""

    pattern: str = Field(description="Regular expression of Python's `re`; `.` also matches a line end.")
    where: Literal["answer", "text"] = Field(
        "answer", description="`answer`: without the thinking part. `text`: all, with tags such as `</think>`."
    )
    whole: bool = Field(True, description="The whole text must match, not a part of it.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        compile_pattern(pattern)
        return pattern


def formed(config: RegexConfig, completion: Completion) -> float:
    """1 where the pattern matches. Raises ``ConfigError`` for one that takes too long."""
    text = (completion.content if config.where == "answer" else completion.text)[:SEARCHED]
    try:
        return float(PatternMatcher(SECONDS).matches(config.pattern, text, whole=config.whole, dotall=True))
    except PatternTimeout as error:
        key, way = "rewards.regex.pattern", "let what is repeated match in one way only: a+ instead of (a|aa)+"
        raise ConfigError.at(key, f"takes too long: {error}", code="ERN-C012", fix=way) from None


class Regex(VerifiableReward):
    """The completion matches a pattern."""

    name, summary = "regex", "1 where the completion matches a pattern"
    Config = RegexConfig
    conformance_config: ClassVar[Mapping[str, Any]] = {"pattern": r"\d+"}


class NumericConfig(RewardConfig):
    """Settings of the reward ``numeric``."""

    absolute: float = Field(0.0, ge=0, description="Difference that still counts as equal.")
    relative: float = Field(1e-6, ge=0, description="The same as a fraction of the reference.")


def last_number(text: str) -> float | None:
    """The last number in ``text``: 1,234.5 is one, 1.2.3 is none; None where there is none, or not a finite one."""
    found = NUMBER.findall(text[-SEARCHED:])
    value = float(found[-1].replace(",", "")) if found else math.inf
    return value if math.isfinite(value) else None


def same_number(config: NumericConfig, completion: Completion) -> float:
    """1 where the last numbers of completion and reference are equal within the tolerances."""
    found, wanted = last_number(completion.content), last_number(completion.reference)
    if found is None or wanted is None:
        return 0.0
    return float(abs(found - wanted) <= max(config.absolute, config.relative * abs(wanted)))


class Numeric(VerifiableReward):
    """The completion ends with the right number."""

    name, summary = "numeric", "1 where the last number of the completion is that of the reference, within a tolerance"
    Config = NumericConfig


class LengthConfig(RewardConfig):
    """Settings of the reward ``length-penalty``."""

    free: int = Field(64, ge=0, description="Tokens that cost nothing.")
    limit: int = Field(
        128, ge=1, description="Tokens from which on a completion costs 1; in between the cost rises linearly."
    )


def length_cost(config: LengthConfig, completion: Completion) -> float:
    """0 up to ``free`` tokens, then linearly down to -1 at ``limit`` and beyond.

    Yu et al., "DAPO" (2025), arXiv:2503.14476: soft overlong punishment."""
    over = completion.num_tokens - config.free
    return -float(min(1.0, max(0.0, over / max(1, config.limit - config.free))))


class LengthPenalty(VerifiableReward):
    """A penalty for long completions."""

    name, summary = "length-penalty", "0 for short completions, down to -1 for long ones"
    Config = LengthConfig


#: name of a reward function -> (its section, a completion) -> the reward
FUNCTIONS: Mapping[str, Callable[[Any, Completion], float]] = {
    "exact-match": exact,
    "contains": contained,
    "regex": formed,
    "numeric": same_number,
    "length-penalty": length_cost,
}
exact_match, contains, regex = ExactMatch(), Contains(), Regex()
numeric, length_penalty = Numeric(), LengthPenalty()
