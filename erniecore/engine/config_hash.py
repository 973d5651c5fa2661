"""Which settings change a weight, and the hash of those that do. No paddle, no files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

#: keys (patterns) whose change never changes a weight
SAFE = (
    "run.name",
    "run.out",
    "run.resume",
    "run.accept_changes",
    "run.accept_changes.*",
    "run.deterministic",  # decides which devices are taken, and the device is a key of its own
    "data.workers",
    "data.cache",
    "data.static_shapes",
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


def config_hash(settings: Mapping[str, Any]) -> str:
    """sha256 over everything that is not safe; equal hashes mean the same mathematics."""
    left_out = (*SAFE, *NOTED)
    relevant = {k: v for k, v in flatten(settings).items() if not matches(k, left_out)}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Whether a key fits one of the patterns."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)
