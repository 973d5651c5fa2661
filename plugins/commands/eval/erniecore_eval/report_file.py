"""The file of ``ernie eval --out``: the scores with what they depend on, by content, so that they mean something later on."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from erniecore.api.command import store_text
from erniecore.api.files import read_bytes
from erniecore_eval.asked import Asked
from erniecore_eval.suites import Item

_DISTRIBUTIONS = ("erniecore", "erniecore-eval", "numpy")
_LARGEST = 1 << 30


def rows_sha256(items: Iterable[Item]) -> str:
    """One hash of what the rows mean, in their order; file and line do not matter."""
    digest = hashlib.sha256()
    for item in items:
        content = {name: value for name, value in asdict(item.record).items() if name != "origin"}
        digest.update(json.dumps(content, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
    return digest.hexdigest()


def samples_sha256(path: Path) -> str:
    """The hash of a file of samples. Raises ``OSError``."""
    return hashlib.sha256(read_bytes(path, _LARGEST)).hexdigest()


def settings_of(asked: Asked) -> dict[str, Any]:
    """What was asked for, as the report has it."""
    given = asdict(asked)
    left_out = {"completions", "by_row", *(() if asked.generate else ("max_new_tokens", "sampling", "speculative"))}
    paths = {"reference": str(asked.reference or ""), "adapter": str(asked.adapter or "")}
    return {**{name: value for name, value in given.items() if name not in left_out}, **paths}


def write_report(path: Path, body: Mapping[str, Any], asked: Asked) -> None:
    """Replace ``path``; numbers that are not finite become null. Raises ``CheckpointError`` where it cannot be written."""
    facts = {"time": round(time.time(), 3), "versions": {name: version(name) for name in _DISTRIBUTIONS},
             "settings": settings_of(asked)}  # fmt: skip
    text = json.dumps(_finite({**facts, **body}), ensure_ascii=False, indent=2, allow_nan=False)
    store_text(path, text + "\n", "writing the results")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
