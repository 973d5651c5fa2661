"""Checks for data formats. A plugin's class attribute ``examples`` (rows as parsed JSON) gives them something to read;
without it the checks on rows of its own are skipped."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from erniecore.api import RowError
from erniecore.api.data import Conversation, Document, Message, Preference, UnpairedPreference
from erniecore.api.method import Origin
from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject

_ORIGIN = Origin("toy.jsonl", 7)
_RECORDS = (Conversation, Document, Preference, UnpairedPreference)
_WRONG: tuple[Any, ...] = (None, 12.5, True, "", [], {}, [None], {"a": 1})
_STRANGE_ROWS: tuple[dict[str, Any], ...] = ({}, {"zzz": 1}, {"": None}, {"zzz": {"text": ["a"]}})
_FOREIGN = (
    Document("a text", _ORIGIN),
    Preference(
        (Message("user", "q"),), (Message("assistant", "g"),), (Message("assistant", "b"),), 1.5, origin=_ORIGIN
    ),
)
_CONTROL = "<|end_of_sentence|></s><mask:1>[SEP]\u3000\u0001é e\u0301\r\n\t  tail"


def _examples(subject: Subject) -> list[dict[str, Any]]:
    rows = [copy.deepcopy(dict(row)) for row in getattr(subject.plugin, "examples", ())]
    if not rows:
        raise NotApplicable("the plugin offers no `examples`")
    return rows


def _parse(subject: Subject, row: dict[str, Any]) -> Any:
    return subject.call("ernie_parse_row", config=subject.config(), row=row, origin=_ORIGIN)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in a row but the row itself, with its path."""
    if path:
        yield path, value
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _with(row: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of ``row`` with another value at ``path``."""
    changed: Any = copy.deepcopy(row)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    result: dict[str, Any] = changed
    return result


def _texts(value: Any) -> Iterator[str]:
    """Every string in a record."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_texts(key), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _free_text(row: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Strings of a row that are text and not a word of the format: those with whitespace in them."""
    return ((path, value) for path, value in _leaves(row) if isinstance(value, str) and " " in value.strip())


def check_format_matches_own_rows(subject: Subject) -> None:
    """``ernie_match_row`` is true for every example."""
    for row in _examples(subject):
        ensure(subject.call("ernie_match_row", row=row) is True, f"does not match its own example {row}")


def check_format_refuses_foreign_rows(subject: Subject) -> None:
    """``ernie_match_row`` is false, and does not raise, for rows of no format at all."""
    for row in _STRANGE_ROWS:
        ensure(subject.call("ernie_match_row", row=row) is False, f"claims the row {row}")


def check_format_matching_never_raises(subject: Subject) -> None:
    """``ernie_match_row`` answers true or false whatever stands in a field."""
    for row in _examples(subject):
        for path, _ in list(_leaves(row)):
            for wrong in _WRONG:
                changed = _with(row, path, wrong)
                found = subject.call("ernie_match_row", row=changed)
                ensure(isinstance(found, bool), f"match_row gave {found!r} for {changed}")


def check_format_parses_own_rows(subject: Subject) -> None:
    """Every example becomes a record that keeps its origin."""
    for row in _examples(subject):
        record = _parse(subject, row)
        ensure(isinstance(record, _RECORDS), f"{row} became a {type(record).__name__}, which is no record")
        ensure_equal(record.origin, _ORIGIN, "origin of the record")


def check_format_parsing_is_pure(subject: Subject) -> None:
    """Parsing a row twice gives equal records and leaves the row as it was."""
    for row in _examples(subject):
        before = copy.deepcopy(row)
        first = _parse(subject, row)
        ensure_equal(row, before, "the row after parsing")
        ensure_equal(_parse(subject, row), first, "the record parsed again")


def check_format_never_loses_text(subject: Subject) -> None:
    """Every free text (a string with whitespace in it) of an example is found in its record."""
    for row in _examples(subject):
        texts = "\x00".join(_texts(_parse(subject, row)))
        for path, text in _free_text(row):
            ensure(text in texts, f"{_json_path(path)} is not in the record: {text!r}")


def check_format_keeps_text_verbatim(subject: Subject) -> None:
    """Control tokens, blanks, line ends and combining characters inside a text arrive unchanged."""
    for row in _examples(subject):
        for path, text in _free_text(row):
            marked = f"{text} {_CONTROL} and more"
            try:
                record = _parse(subject, _with(row, path, marked))
            except RowError:
                continue
            ensure(any(_CONTROL in t for t in _texts(record)), f"{_json_path(path)} was changed on its way")


def check_format_errors_have_paths(subject: Subject) -> None:
    """A row with a wrong value or a missing key is parsed, or refused with a ``RowError`` whose ``where`` is a JSON
    path (``$.a[0].b``); nothing else is raised."""
    for row in _examples(subject):
        for changed, what in _damaged(row):
            try:
                _parse(subject, changed)
            except RowError as error:
                ensure(error.where.startswith("$"), f"{what}: where is {error.where!r}, not a JSON path")
                ensure(bool(error.message), f"{what}: the error says nothing")
            except Exception as error:
                raise CheckFailed(f"{what}: raised {type(error).__name__}: {error}; expected RowError") from error


def _damaged(row: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    yield {}, "an empty row"
    for key in row:
        yield {k: v for k, v in row.items() if k != key}, f"without {key}"
    for path, _ in _leaves(row):
        for wrong in _WRONG:
            yield _with(row, path, wrong), f"{_json_path(path)} = {wrong!r}"


def check_format_refuses_empty_rows(subject: Subject) -> None:
    """An empty row is a ``RowError``: a format never makes a record of nothing."""
    try:
        record = _parse(subject, {})
    except RowError:
        return
    raise CheckFailed(f"an empty row became {record!r}")


def check_format_writes_own_records(subject: Subject) -> None:
    """A format that writes (``ernie_write_record``) writes what it read: the record of each example comes back as it was,
    through JSON. A record of another kind is written so that it comes back, or refused with a ``RowError``."""
    if not hasattr(subject.plugin, "ernie_write_record"):
        raise NotApplicable("the format does not write")
    for row in _examples(subject):
        record = _parse(subject, row)
        ensure_equal(_parse(subject, _written(subject, record)), record, f"the record of {row}, written and read")
    for record in _FOREIGN:
        try:
            row = _written(subject, record)
        except RowError as error:
            ensure(error.where.startswith("$"), f"where is {error.where!r}, not a JSON path")
            continue
        ensure_equal(_parse(subject, row), record, "a record that the format wrote")


def _written(subject: Subject, record: Any) -> dict[str, Any]:
    row = subject.call("ernie_write_record", config=subject.config(), record=record)
    read: dict[str, Any] = json.loads(json.dumps(row))
    return read


def _json_path(path: tuple[Any, ...]) -> str:
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)


CHECKS = (
    Check(check_format_matches_own_rows),
    Check(check_format_refuses_foreign_rows),
    Check(check_format_matching_never_raises),
    Check(check_format_parses_own_rows),
    Check(check_format_parsing_is_pure),
    Check(check_format_never_loses_text),
    Check(check_format_keeps_text_verbatim),
    Check(check_format_errors_have_paths),
    Check(check_format_refuses_empty_rows),
    Check(check_format_writes_own_records),
)
