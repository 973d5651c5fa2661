"""The reference page of ERNIEKit's keys, generated from the table."""

from __future__ import annotations

from erniecore.migration.erniekit.key import Key
from erniecore.migration.erniekit.table import GROUPS, KEYS

_INTRODUCTION = (
    "# ERNIEKit's keys",
    "",
    "What `ernie config import` and `ernie run OLD.yaml` make of each of the {count} keys of ERNIEKit: the settings that it "
    "becomes, or why it becomes none. [Coming from ERNIEKit](../how-to/from-erniekit.md) shows both commands at work.",
    "",
    "* *Default* is what ERNIEKit 1.3 uses where the key is absent. Where that default changes the training and ours is "
    "another, the import writes it out.",
    "* A key with several settings becomes those that its value asks for.",
    "* Keys that are not listed are unknown to ERNIEKit too, which ignores them; the import names them and ends with exit "
    "code 2.",
    "",
)


def markdown() -> str:
    """The page without its notice: a table per group."""
    lines = [line.format(count=len(KEYS)) for line in _INTRODUCTION]
    for heading, keys in GROUPS.items():
        lines += [f"## {heading}", "", "| key | default | becomes | |", "|---|---|---|---|"]
        lines += [_row(key) for key in sorted(keys, key=lambda key: not key.new)]
        lines.append("")
    return "\n".join(lines)


def knows(name: str) -> bool:
    """Whether ``name`` is a key of ERNIEKit."""
    return name in KEYS


def explanation(name: str) -> dict[str, str]:
    """What a key becomes, in the words of ``ernie config explain``."""
    key = KEYS[name]
    text = f"becomes {key.new}" if key.new else "becomes nothing"
    description = f"{text}: {key.note}" if key.note else text
    return {
        "key": key.old,
        "owner": "ERNIEKit (`ernie config import`)",
        "type": WORDS[key.type],
        "default": _default(key.default),
        "description": description,
    }


#: types of the table for people
WORDS = {
    "flag": "true or false", "whole": "integer", "number": "number", "text": "text", "list": "list with commas",
    "words": "words", "any": "anything",
}  # fmt: skip


def _row(key: Key) -> str:
    new = ", ".join(f"`{name}`" for name in key.new.split(", ")) if key.new else "–"
    return f"| `{key.old}` | {_default(key.default)} | {new} | {key.note.replace('|', chr(92) + '|')} |"


def _default(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) or "–"
