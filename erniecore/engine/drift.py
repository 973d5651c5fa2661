"""Comparing the settings of a run with those of the checkpoint that it continues. No paddle, no files.

A difference is either safe (it changes what is reported or kept, never a number), noted (allowed, with a note), or
refused: continuing would be neither the old run nor the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from erniecore_catalog.retired import ADDED

from erniecore.engine.config_hash import NOTED, SAFE, flatten, matches

#: keys that split the rows of a step into micro-batches: they may change as long as a step has as many rows
SPLIT = ("train.batch_size", "train.accumulation")
_SPLIT_NOTE = "a step has the same rows, split differently: results may differ in the last bits"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that differs. ``note`` is set for noted keys; ``safe`` for safe ones."""

    key: str
    before: object
    now: object
    safe: bool = False
    note: str = ""

    @property
    def refused(self) -> bool:
        return not self.safe and not self.note

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.now!r}" + (f" ({self.note})" if self.note else "")


def compare(before: Mapping[str, Any], now: Mapping[str, Any], *, same_rows: bool = False) -> list[Difference]:
    """All keys that differ, in order; a key that only one side has counts as ``None`` on the other.

    A format that only one side names is left out: earlier versions listed all that were installed, and what a run makes of its
    rows is compared sample by sample. ``same_rows``: a step has as many rows as before, on all ranks together.
    """
    new = flatten(now)
    old = {key: value for key, value in ADDED.items() if key in new} | flatten(before)
    unnamed = {f"formats.{name}" for name in {*before.get("formats", {})} ^ {*now.get("formats", {})}}
    split = _SPLIT_NOTE if same_rows else ""
    return [
        Difference(key, old.get(key), new.get(key), safe=matches(key, SAFE), note=split if key in SPLIT else _note(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and ".".join(key.split(".")[:2]) not in unnamed
    ]


def _note(key: str) -> str:
    return next((note for pattern, note in NOTED.items() if fnmatchcase(key, pattern)), "")
