"""Scorers whose answers can be checked: plugin objects and their settings. Plain Python, no models.

Every scorer takes any text: what cannot be read as an answer is worth nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from erniecore.api import Attempt, Field, Plugin, ScorerConfig, hookimpl

#: 12, -0.5, 1,234.5, .5e-3; of 3-4 the second is 4
NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)"
)
#: text beyond this is not searched: an answer that long is no answer
SEARCHED = 100_000


class Scorer(Plugin):
    """A scorer that looks at one answer at a time."""

    kind = "scorer"

    @hookimpl
    def ernie_score_attempts(self, config: ScorerConfig, attempts: Sequence[Attempt]) -> Sequence[float]:
        """One number per answer, by the function of ``SCORES``."""
        score = SCORES[self.name]
        return [score(config, attempt) for attempt in attempts]


class TextConfig(ScorerConfig):
    """Section of scorers that compare texts."""

    ignore_case: bool = Field(False, description="Upper and lower case are the same.")


def plain(text: str, config: TextConfig) -> list[str]:
    """Words, in lower case if that does not matter."""
    return (text.casefold() if config.ignore_case else text).split()


def exact(config: TextConfig, attempt: Attempt) -> float:
    """1 for the reference answer, white space aside."""
    return float(plain(attempt.answer, config) == plain(attempt.reference, config))


def contained(config: TextConfig, attempt: Attempt) -> float:
    """1 where the reference's words stand in the answer, next to each other."""
    wanted, found = plain(attempt.reference, config), plain(attempt.answer, config)
    n = len(wanted)
    return float(bool(n) and any(found[i : i + n] == wanted for i in range(len(found) - n + 1)))


class ExactMatch(Scorer):
    """The answer is the reference."""

    name, summary = "exact-match", "1 where the answer is the reference answer, white space aside"
    Config = TextConfig


class Contains(Scorer):
    """The answer holds the reference."""

    name, summary = "contains", "1 where the words of the reference answer stand in the answer"
    Config = TextConfig


class RegexConfig(ScorerConfig):
    """Section of the scorer of forms."""

    pattern: str = Field(description="Regular expression of Python's `re`; `.` also matches a line end.")
    where: Literal["answer", "text"] = Field(
        "answer", description="`answer`: without the thinking part. `text`: all, with tags such as `</think>`."
    )
    whole: bool = Field(True, description="The whole text must match, not a part of it.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return pattern


def formed(config: RegexConfig, attempt: Attempt) -> float:
    """1 where the pattern matches."""
    text = (attempt.answer if config.where == "answer" else attempt.text)[:SEARCHED]
    compiled = re.compile(config.pattern, re.DOTALL)
    return float((compiled.fullmatch(text) if config.whole else compiled.search(text)) is not None)


class Regex(Scorer):
    """The answer has a form."""

    name, summary = "regex", "1 where the answer has the form of a pattern, whatever it says"
    Config = RegexConfig
    conformance_config: ClassVar[Mapping[str, Any]] = {"pattern": r"\d+"}


class NumericConfig(ScorerConfig):
    """Section of the scorer of numbers."""

    absolute: float = Field(0.0, ge=0, description="Difference that still counts as equal.")
    relative: float = Field(1e-6, ge=0, description="The same as a share of the reference.")


def last_number(text: str) -> float | None:
    """The last number in ``text``: 1,234.5 is one, 1.2.3 is none; None where there is none, or not a finite one."""
    found = NUMBER.findall(text[-SEARCHED:])
    value = float(found[-1].replace(",", "")) if found else math.inf
    return value if math.isfinite(value) else None


def same_number(config: NumericConfig, attempt: Attempt) -> float:
    """1 where the last numbers of answer and reference are equal within the tolerances."""
    found, wanted = last_number(attempt.answer), last_number(attempt.reference)
    if found is None or wanted is None:
        return 0.0
    return float(abs(found - wanted) <= max(config.absolute, config.relative * abs(wanted)))


class Numeric(Scorer):
    """The answer ends with the right number."""

    name, summary = "numeric", "1 where the last number of the answer is that of the reference, within a tolerance"
    Config = NumericConfig


class LengthConfig(ScorerConfig):
    """Section of the scorer of lengths."""

    free: int = Field(64, ge=0, description="Tokens that cost nothing.")
    limit: int = Field(
        128, ge=1, description="Tokens from which on an answer costs 1; in between the cost rises linearly."
    )


def length_cost(config: LengthConfig, attempt: Attempt) -> float:
    """0 up to ``free`` tokens, then linearly down to -1 at ``limit`` and beyond.

    Yu et al., "DAPO" (2025), arXiv:2503.14476: soft overlong punishment."""
    over = attempt.num_tokens - config.free
    return -float(min(1.0, max(0.0, over / max(1, config.limit - config.free))))


class LengthPenalty(Scorer):
    """Long answers cost."""

    name, summary = "length-penalty", "0 for short answers, down to -1 for long ones"
    Config = LengthConfig


#: name of a scorer -> (its section, an answer) -> its score
SCORES: Mapping[str, Callable[[Any, Attempt], float]] = {
    "exact-match": exact,
    "contains": contained,
    "regex": formed,
    "numeric": same_number,
    "length-penalty": length_cost,
}
exact_match, contains, regex = ExactMatch(), Contains(), Regex()
numeric, length_penalty = Numeric(), LengthPenalty()
