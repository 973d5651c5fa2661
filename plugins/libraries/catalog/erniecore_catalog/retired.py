"""Retired spellings of settings keys and command-line flags: the one table of them, and what is said to who uses one. Also the
settings that were added since the first version.

A retired spelling works for one minor version as the new one, with a warning that names the new one. Help, reference
and JSON schema list the new spelling alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: retired key -> key; a whole section (``scorers``) or a key in it (``section.key``), with all that is below
KEYS: Mapping[str, str] = {
    "scorers": "rewards",
    "train.optimizer": "optimizer.name",
    "train.adam_beta1": "optimizer.beta1",
    "train.adam_beta2": "optimizer.beta2",
    "train.adam_epsilon": "optimizer.epsilon",
    "train.moments": "optimizer.moments",
    "train.optimizer_offload": "optimizer.offload",
    "device.card": "device.index",
}
#: retired flag -> flag
FLAGS: Mapping[str, str] = {
    "--scorer": "--reward",
    "--answers": "--completions",
    "--cards": "--accelerators",
    "--card": "--accelerator",
}

#: settings that earlier versions did not have, of the core and of plugins -> what those versions behaved as
ADDED: Mapping[str, object] = {
    "data.max_patches": 0,
    "method.mismatch": [],
    "method.neftune_alpha": 0.0,
    "method.start_batch": 1.0,
    "method.start_dropout": 1.0,
    "method.start_length": 0,
    "method.steps": 0,
    "model.gpas": "off",
    "model.layer_norm_scaling": False,
    "model.router_sequence_loss": 0.0,
    "model.router_similarity_loss": 0.0,
    "optimizer.include": [],
    "schedules": {},
    "train.cycles": 1,
    "train.freeze": [],
    "train.matmul_precision": "highest",
}


def current_key(key: str) -> str:
    """``key`` as it is spelled now, e.g. ``rewards.regex.pattern`` for ``scorers.regex.pattern``."""
    for old, new in KEYS.items():
        if key == old or key.startswith(old + "."):
            return new + key[len(old) :]
    return key


def renamed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Nested settings with their retired keys as they are spelled now, and (retired key, key) of those that were there.

    The leaves may be anything but mappings: a value, or a value with its source.
    """
    result, found = dict(tree), []
    for old, new in KEYS.items():
        node = value_at(result, old)
        if node is not None:
            result = _merged(nested(new, node), _without(result, old.split(".")))
            found.append((old, new))
    return result, found


def renamed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a checkpoint, as :func:`renamed`: what was a key of a section and is the name of a plugin now is among
    their ``plugins``."""
    result, found = renamed(settings)
    for kind in (new.removesuffix(".name") for _, new in found if new.endswith(".name")):
        section = dict(result[kind])
        result["plugins"] = {**result.get("plugins", {}), kind: section.pop("name")}
        result[kind] = section
    return result


def value_at(tree: Any, key: str) -> Any:
    """What nested mappings hold at ``section.key``; None: nothing."""
    for step in key.split("."):
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def nested(key: str, value: Any) -> dict[str, Any]:
    """``{"section": {"key": value}}`` for ``section.key``."""
    for step in reversed(key.split(".")):
        value = {step: value}
    result: dict[str, Any] = value
    return result


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        k: _merged(low[k], v) for k, v in high.items() if isinstance(v, Mapping) and isinstance(low.get(k), Mapping)
    }
    return {**low, **high, **both}


def _without(tree: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """A copy of ``tree`` that lacks what is at ``path``, and the sections that are empty then."""
    head, *rest = path
    below = _without(tree[head], rest) if rest else {}
    return {k: v if k != head else below for k, v in tree.items() if k != head or below}


def current_flags(words: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """The words of a command line with the flags as they are spelled now, and a warning for each flag that was replaced.

    Args:
        known: the flags of the command. A retired flag that the command itself has, or whose new spelling it lacks, stays.
    """
    end = words.index("--") if "--" in words else len(words)
    result, warnings = list(words), []
    for i, word in enumerate(words[:end]):
        flag, equals, value = word.partition("=")
        new = FLAGS.get(flag, "")
        if new in known and flag not in known:
            result[i] = new + equals + value
            warnings.append(warning(flag, new))
    return result, warnings


def warning(old: str, new: str) -> str:
    """What is said of a retired spelling."""
    return f"{old} is deprecated and will be removed in the next minor version; use {new}"
