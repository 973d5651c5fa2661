"""The settings of a run as its ``resolved.yaml`` has them: every key with its value and where that came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from erniecore.api.files import read_text

RESOLVED_NAME = "resolved.yaml"
#: what a reader asks for first, also where it was left at its default; the rest follows in the order of the file
_FIRST = (
    "model.name", "model.path", "model.size", "method.name", "adapter.name", "quantizer.name", "data.train",
    "train.learning_rate", "train.schedule", "train.warmup_steps", "train.warmup_ratio", "train.max_steps", "train.epochs",
    "train.batch_size", "train.accumulation", "data.max_seq_len", "data.packing", "optimizer.name", "train.weight_decay",
    "train.max_grad_norm", "train.precision", "run.seed",
)  # fmt: skip
_DEFAULT = "default"
#: bytes of the settings that are read
_MOST = 1 << 24


@dataclass(frozen=True, slots=True)
class Setting:
    """One key with its value as it is written in the file, and its source."""

    key: str
    value: str
    source: str


def hyperparameters(directory: Path) -> tuple[list[Setting], list[Setting]]:
    """(those of interest: the telling ones and all that were set, the others); empty without a readable file."""
    try:
        text = read_text(directory / RESOLVED_NAME, _MOST)
    except (OSError, ValueError):
        return [], []
    found = {setting.key: setting for setting in _settings(text)}
    first = [found.pop(key) for key in _FIRST if key in found and found[key].value not in ('""', "null")]
    chosen = first + [setting for setting in found.values() if setting.source != _DEFAULT]
    return chosen, [setting for setting in found.values() if setting.source == _DEFAULT]


def _settings(text: str) -> Iterator[Setting]:
    """The leaves of the file, which a run has written: ``key: value  # source``, two spaces per level."""
    path: list[str] = []
    for line in text.splitlines():
        name, colon, rest = line.strip().partition(":")
        if not colon or line.lstrip().startswith("#"):
            continue
        level = (len(line) - len(line.lstrip())) // 2
        path = [*path[:level], name]
        value, mark, source = rest.rpartition("  # ")
        if mark:
            yield Setting(".".join(path), value.strip(), source)
