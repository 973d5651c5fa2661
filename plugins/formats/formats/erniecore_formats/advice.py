"""What to rename in rows that fit no format: fields under names that other data sets give them, or with a slip of the pen.

Looked at for one row of a file that is refused; nothing is ever read under another name by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.api import Json, nearest

#: names that data sets give to one and the same thing
_QUESTION = "instruction query prompt question input problem user human source request"
_ANSWER = "output response completion answer target solution assistant gpt reply generation"
_CHOSEN = "chosen preferred positive better winner win accepted chosen_response response_chosen"
_REJECTED = "rejected dispreferred negative worse loser lose refused rejected_response response_rejected"
_MESSAGES = "messages conversations conversation dialog dialogue chat turns items"
_TEXT = "text content document body raw_text raw_content passage"
_GROUPS = tuple(frozenset(names.split()) for names in (_QUESTION, _ANSWER, _CHOSEN, _REJECTED, _MESSAGES, _TEXT))
#: fields of rows that are no single rename away -> what to do
_KNOWN = (
    (("segments",), "write the turns of 'segments' into 'messages', without the tokens of a template"),
    (("text", "message_id"), "join each path of the tree, from its first question to an answer, into 'messages'"),
    (("prompt", "completions", "labels"), "join the steps into 'completion', and give it one 'label'"),
    (("instruction", "completions"), "write the best and the worst answer into 'chosen' and 'rejected'"),
    (("instruction", "generations"), "write the best and the worst answer into 'chosen' and 'rejected'"),
    (
        ("message_1", "message_2"),
        "rename 'message_1' to 'instruction' and 'message_2' to 'output', or add --format alpaca "
        "formats.alpaca.columns.instruction=message_1 formats.alpaca.columns.output=message_2",
    ),
    (
        ("input", "output", "system_prompt"),
        "rename 'input' to 'prompt', 'output' to 'completion' and 'system_prompt' to 'system', or add --format preference "
        "formats.preference.columns.prompt=input formats.preference.columns.completion=output "
        "formats.preference.columns.system=system_prompt",
    ),
)


def of_row(row: Json, name: str, shapes: Sequence[Sequence[str]]) -> str:
    """One line for the format ``name``, whose rows have one of these sets of fields; nothing where the row is far from all."""
    known = next((line for fields, line in _KNOWN if row.keys() >= set(fields)), "")
    if known or row.keys() == {"prompt"}:
        return known or "add 'completion', the answer that is learned, or the reference of rewards"
    lines = [line for shape in shapes if (line := _renamed(row, name, shape))]
    return min(lines, key=len, default="") or _inside(row)


def _inside(row: Json) -> str:
    """An object that is no row but has the rows in one of its fields."""
    key, value = next(iter(row.items()), ("", None))
    if len(row) != 1 or not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return ""
    if {"role", "from"} & value[0].keys():  # messages, not rows
        return ""
    return f"the rows are inside of {key!r}: write that list alone into the file"


def _renamed(row: Json, name: str, shape: Sequence[str]) -> str:
    free = [key for key in row if key not in shape]
    slips, others = [], []
    for field in shape:
        if field in row:
            continue
        if field == "prompt" and len(free) == len(row) - 2:
            return "add 'prompt', the question that both answer"
        group = next((group for group in _GROUPS if field in group), frozenset())
        if (found := nearest(field, free)) and not any(found in other for other in _GROUPS):
            slips.append((found, field))
        elif found := next((key for key in free if key.lower() in group), None):
            others.append((found, field))
        else:
            return ""
        free.remove(found)
    if slips and not others:
        return ", ".join(f"is {found!r} meant to be {field!r}?" for found, field in slips)
    pairs = [*slips, *others]
    renames = " and ".join(f"{found!r} to {field!r}" for found, field in pairs)
    columns = " ".join(f"formats.{name}.columns.{field}={found}" for found, field in pairs)
    if name == "text":
        columns = f"formats.text.field={pairs[0][0]}" if pairs else ""
    return f"rename {renames}, or add --format {name} {columns}" if pairs else ""
