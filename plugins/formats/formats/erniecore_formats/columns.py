"""Columns under other names: ``columns: {instruction: question}`` reads the field ``instruction`` from ``question``.

A mapped field is read from its column only, and errors name the column as it stands in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from erniecore.api import Json, RowError
from erniecore.api.data import Origin

Made = TypeVar("Made")


def parse(parse: Callable[[Json, Origin], Made], columns: Mapping[str, str], row: Json, origin: Origin) -> Made:
    """What ``parse`` makes of a row whose columns have other names."""
    if not columns:
        return parse(row, origin)
    taken = set(columns.values()) | set(columns)
    ours = {name: value for name, value in row.items() if name not in taken}
    ours.update((field, row[column]) for field, column in columns.items() if column in row)
    try:
        return parse(ours, origin)
    except RowError as e:
        raise _named(e, columns) from e


def rename(row: Json, columns: Mapping[str, str]) -> Json:
    """A row of ours under the names of the file."""
    return {columns.get(name, name): value for name, value in row.items()} if columns else row


def _named(error: RowError, columns: Mapping[str, str]) -> RowError:
    field = error.where.removeprefix("$.").split(".")[0].split("[")[0]
    if field not in columns:
        return error
    column = columns[field]
    where = f"$.{column}{error.where[len(field) + 2 :]}"
    message = error.message.replace(repr(field), repr(column))
    fix = error.fix.replace(repr(field), repr(column))
    expected = error.expected.replace(repr(field), repr(column))
    return RowError(message, code=error.code, where=where, found=error.found, expected=expected, fix=fix)
