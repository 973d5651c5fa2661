"""Cells of a table to values of JSON. A table has texts alone; what a cell is follows from the name of its column.

An answer such as ``42`` or ``{"a": 1}`` stays that text. JSON are the columns that hold no text in any format, and lists of
messages in any column.
"""

from __future__ import annotations

import re
from typing import Any

from erniecore.api import RowError, shorten
from erniecore.api.files import parse_json
from erniecore.api.rows import codes

#: numbers, truth values, and lists of them
_VALUES = {"label", "kto_tag", "is_system", "sort", "weight"}
_VALUES |= {
    "margin",
    "score_chosen",
    "score_rejected",
    "chosen_score",
    "rejected_score",
    "chosen_rating",
    "rejected_rating",
}
#: lists and objects
_LISTS = {"messages", "conversations", "conversation", "history", "tools", "functions", "images", "videos", "audios"}
_LISTS |= {"preferred_output", "non_preferred_output", "rejected_messages", "objects"}
#: a text, or a list of texts: a turn each
_TURNS = {"src", "tgt", "response"}
#: as Python and spreadsheets write them
_TRUTH = {"True": True, "TRUE": True, "False": False, "FALSE": False}
#: a list of messages as JSON, or as Python prints one; a single message; OpenAI's prompt of a preference
_MESSAGES = re.compile(r"""\s*(\[\s*\{\s*["'](role|from|content|value)["']|\{\s*["'](role|from|messages)["'])\s*:""")
_PYTHON = re.compile(r"\s*\[?\s*[\[{]\s*'")


def value_of(name: str, cell: str) -> Any:
    """The value of a cell that is not empty; the ``RowError`` that says why it has none."""
    if name in _VALUES:
        return _number(cell)
    if (name in _LISTS and cell.lstrip()[:1] in ("[", "{")) or _MESSAGES.match(cell):
        return _json(name, cell)
    return _texts(cell) if name in _TURNS and cell.lstrip().startswith("[") else cell


def _number(cell: str) -> Any:
    if cell in _TRUTH:
        return _TRUTH[cell]
    try:
        return parse_json(cell)
    except ValueError:  # the format says what it expects
        return cell


def _texts(cell: str) -> Any:
    try:
        value = parse_json(cell)
    except ValueError:
        return cell
    return value if all(isinstance(x, str | list) for x in value) else cell


def _json(name: str, cell: str) -> Any:
    try:
        return parse_json(cell)
    except ValueError as e:
        fix = "write the cell with json.dumps(...), not str(...)" if _PYTHON.match(cell) else "repair the cell"
        return RowError(
            f"the cell is not valid JSON: {e}", code=codes.MALFORMED, where=f"$.{name}", found=shorten(cell), fix=fix
        )
