"""The reward function ``checklist``: which of several things a completion does. Items stand in the settings, or in the rows.
Plain Python, no models.

An item is a line ``name: argument``; names are those of ``CHECKS`` and ``pattern``, and ``- `` before it is for the eye.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import field_validator, model_validator

from erniecore.api import ConfigError, DataError, Field, Plugin, hookimpl
from erniecore.api.patterns import PatternMatcher, PatternTimeout, compile_pattern
from erniecore.api.reward import Completion
from erniecore_rl.rewards import SEARCHED, SECONDS, TextConfig, plain


class Item(NamedTuple):
    """One item: what is checked, and its argument."""

    check: str
    argument: str


def among(wanted: list[str], found: list[str]) -> bool:
    """The words stand in the text, next to each other."""
    n = len(wanted)
    return any(found[i : i + n] == wanted for i in range(len(found) - n + 1))


#: name -> (words of the argument, words of the completion) -> whether the item is fulfilled
CHECKS: Mapping[str, Callable[[list[str], list[str]], bool]] = {
    "contains": among,
    "excludes": lambda wanted, found: not among(wanted, found),
    "starts": lambda wanted, found: found[: len(wanted)] == wanted,
    "ends": lambda wanted, found: found[len(found) - len(wanted) :] == wanted,
    "min-words": lambda wanted, found: len(found) >= int(wanted[0]),
    "max-words": lambda wanted, found: len(found) <= int(wanted[0]),
}


def read_item(line: str) -> Item:
    """Raises ``ValueError`` for a line that is no item."""
    name, colon, argument = line.strip().removeprefix("- ").partition(":")
    name, argument = name.strip(), argument.strip()
    if not colon or name not in (*CHECKS, "pattern") or not argument:
        raise ValueError(
            f"{line.strip()!r} is no item; write one of {', '.join(CHECKS)}, pattern, a colon and an argument"
        )
    if name.endswith("-words") and not (argument.isascii() and argument.isdigit()):
        raise ValueError(f"{line.strip()!r}: a number of words is expected")
    if name == "pattern":
        compile_pattern(argument)
    return Item(name, argument)


class ChecklistConfig(TextConfig):
    """Settings of the reward ``checklist``."""

    items: tuple[str, ...] = Field(
        (),
        description="Items for every completion: `contains: WORDS`, `excludes: WORDS`, `starts: WORDS`, `ends: WORDS`, "
        "`min-words: N`, `max-words: N`, `pattern: REGEX` (found anywhere).",
    )
    rows: bool = Field(False, description="The reference answer of a row is a checklist of its own, an item per line.")
    score: Literal["share", "all"] = Field(
        "share", description="`share`: of the items that are fulfilled. `all`: 1 where all are, else 0."
    )

    @field_validator("items")
    @classmethod
    def _readable(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        for line in items:
            read_item(line)
        return items

    @model_validator(mode="after")
    def _something_to_check(self) -> ChecklistConfig:
        if not self.items and not self.rows:
            raise ValueError("there is nothing to check: give items, or set rows: true where references are checklists")
        return self


def fulfilled(item: Item, config: TextConfig, completion: Completion) -> bool:
    """Whether the completion, without its thinking part, does what the item says. Raises ``PatternTimeout``."""
    if item.check == "pattern":
        text = completion.content[:SEARCHED]
        return bool(PatternMatcher(SECONDS).matches(item.argument, text, whole=False, dotall=True))
    return CHECKS[item.check](plain(item.argument, config), plain(completion.content, config))


def items_of_row(completion: Completion) -> list[Item]:
    """Raises ``DataError`` for a reference that is no checklist."""
    try:
        return [read_item(line) for line in completion.reference.splitlines() if line.strip()]
    except ValueError as error:
        raise DataError(
            "the reference answer of a row is no checklist",
            found=str(error),
            fix="write an item per line, or set rewards.checklist.rows=false",
        ) from None


class Checklist(Plugin):
    """The completion does what a list says."""

    kind, name = "reward", "checklist"
    summary = "share of the items of a checklist, of the run or of the row, that the completion fulfills"
    Config = ChecklistConfig
    conformance_config: ClassVar[Mapping[str, object]] = {"items": ("min-words: 1", "excludes: sorry")}

    @hookimpl
    def ernie_compute_rewards(self, config: ChecklistConfig, completions: Sequence[Completion]) -> Sequence[float]:
        """One number per completion. Raises ``ConfigError`` for a pattern that takes too long."""
        rewards, common = [], [read_item(line) for line in config.items]
        for completion in completions:
            items = [*common, *(items_of_row(completion) if config.rows else ())]
            try:
                done = sum(fulfilled(item, config, completion) for item in items)
            except PatternTimeout as error:
                way = "let what is repeated match in one way only: a+ instead of (a|aa)+"
                raise ConfigError.at(
                    "rewards.checklist", f"takes too long: {error}", code="ERN-C012", fix=way
                ) from None
            share = done / len(items) if items else 1.0
            rewards.append(share if config.score == "share" else float(share == 1))
        return rewards


checklist = Checklist()
