"""Comparing the settings of a run with those of the checkpoint that it continues. No paddle, no files.

A difference is either safe (it changes what is reported or kept, never a number), noted (allowed, with a note), or
refused: continuing would be neither the old run nor the new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

#: keys (patterns) whose change never changes a weight
SAFE = (
    "run.name",
    "run.out",
    "run.resume",
    "run.deterministic",  # decides which devices are taken, and the device is a key of its own
    "data.workers",
    "data.cache",
    "data.max_drop",
    "data.too_long",  # what it makes of the rows is compared sample by sample
    "data.eval",
    "data.eval.*",
    "eval.*",
    "checkpoint.*",
    "log.*",
    "callbacks.*",
    "launcher",
    "launcher.*",
    "plugins.launcher",
    "device.keep_memory",
    "train.recompute",
    "run.until",
    "run.max_minutes",
    "train.max_skips",
    "train.max_rollbacks",
    "train.rollback_window",
)
#: keys that may change, and what that means
NOTED = {
    "device.threads": "sums are split differently: results may differ in the last bits",
    "train.max_steps": "the learning-rate schedule is stretched to the new number of steps",
    "parallel": "sums are split differently: results may differ in the last bits",
    "parallel.*": "sums are split differently: results may differ in the last bits",
    "plugins.parallel": "sums are split differently: results may differ in the last bits",
    "data.train.*.path": "allowed because the file's content is the same",
}
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


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``section.key`` -> value; list items by index, empty containers as they are."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, list | tuple):
            value = {str(i): item for i, item in enumerate(value)} or []
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def compare(before: Mapping[str, Any], now: Mapping[str, Any], *, same_rows: bool = False) -> list[Difference]:
    """All keys that differ, in order; a key that only one side has counts as ``None`` on the other.

    A format that only one side names is left out: earlier versions listed all that were installed, and what a run makes of its
    rows is compared sample by sample. ``same_rows``: a step has as many rows as before, on all ranks together.
    """
    old, new = flatten(before), flatten(now)
    unnamed = {f"formats.{name}" for name in {*before.get("formats", {})} ^ {*now.get("formats", {})}}
    split = _SPLIT_NOTE if same_rows else ""
    return [
        Difference(
            key, old.get(key), new.get(key), safe=_matches(key, SAFE), note=split if key in SPLIT else _note(key)
        )
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and ".".join(key.split(".")[:2]) not in unnamed
    ]


def config_hash(settings: Mapping[str, Any]) -> str:
    """sha256 over everything that is not safe; equal hashes mean the same mathematics."""
    left_out = (*SAFE, *NOTED)
    relevant = {k: v for k, v in flatten(settings).items() if not _matches(k, left_out)}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _note(key: str) -> str:
    return next((note for pattern, note in NOTED.items() if fnmatchcase(key, pattern)), "")
