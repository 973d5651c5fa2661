"""The reference page of a toolkit's keys, from its table."""

from __future__ import annotations

from erniecore_key_tables.table import Key, KeyTable

#: types of the table for people
WORDS = {
    "flag": "true or false", "whole": "integer", "number": "number", "text": "text", "list": "list with commas",
    "words": "words", "any": "anything",
}  # fmt: skip


def markdown(table: KeyTable, guide: str) -> str:
    """The page: a table per group. ``guide``: the how-to page, as a link with its title."""
    name = table.toolkit
    lines = [
        f"# {name}'s keys",
        "",
        f"What `ernie config import` and `ernie run OLD.yaml` make of each of the {len(table.keys)} keys of {name}: the "
        f"settings that it becomes, or why it becomes none. {guide} shows both commands at work.",
        "",
        f"* *Default* is what {name} {table.version} uses where the key is absent. Where that default changes the training "
        "and ours is another, the import writes it out.",
        "* A key with several settings becomes those that its value asks for.",
        f"* Keys that are not listed are unknown to {name} too; the import names them and ends with exit code 2.",
        "",
    ]
    for heading, keys in table.groups.items():
        lines += [f"## {heading}", "", "| key | default | becomes | |", "|---|---|---|---|"]
        lines += [_row(key) for key in sorted(keys, key=lambda key: not key.new)]
        lines.append("")
    return "\n".join(lines)


def _row(key: Key) -> str:
    new = ", ".join(f"`{name}`" for name in key.new.split(", ")) if key.new else "–"
    return f"| `{key.old}` | {_default(key.default)} | {new} | {key.note.replace('|', chr(92) + '|')} |"


def _default(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) or "–"
