"""Checks for importers, over the keys of their own table."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from erniecore_key_tables import SECTIONS, KeyTable

from erniecore.api.importer import Imported, ImportTarget
from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, ensure, ensure_equal
from erniecore_conformance.subjects import Subject

#: what no toolkit calls a key
UNKNOWN = "no_such_key_anywhere"
#: a value of each type of key
SAMPLES: Mapping[str, Any] = {
    "flag": True, "whole": 2, "number": 0.5, "text": "x", "list": ["a", "b"], "words": "a b", "any": {"a": 1},
}  # fmt: skip
#: values that fit few keys
STRANGE: tuple[Any, ...] = (None, "", "None", -1, 1e400, "\u0000", [], {}, [[]], {"a": {"b": 1}}, "a,b", "9" * 400)


def _table(subject: Subject) -> KeyTable:
    table: KeyTable = subject.call("ernie_describe_keys")
    return table


def _import(subject: Subject, content: Mapping[str, Any]) -> Imported:
    found: Imported = subject.call("ernie_import_settings", content=content, target=ImportTarget())
    return found


def _contents(subject: Subject) -> Iterator[dict[str, Any]]:
    """Every key alone with a value, then all of them with one that is unknown."""
    table = _table(subject)
    whole = {name: SAMPLES[key.type] for name, key in table.keys.items()}
    yield from ({name: value} for name, value in whole.items())
    yield {**whole, UNKNOWN: 1}


def check_importer_describes_every_key(subject: Subject) -> None:
    """The table has keys, and each becomes settings, or has a note that says why not."""
    table = _table(subject)
    ensure(bool(table.keys), "the table has no keys")
    for name, key in table.keys.items():
        ensure(bool(key.new or key.note), f"{name} becomes nothing, and nothing says why")
        ensure(key.type in SAMPLES, f"{name} is of type {key.type!r}; expected one of {', '.join(SAMPLES)}")
    ensure(table.telling <= set(table.keys), "a telling key is not in the table")


def check_importer_recognizes_its_own(subject: Subject) -> None:
    """A file with all keys of the table counts that many; an empty one and one of other keys count 0."""
    table = _table(subject)
    whole = {name: SAMPLES[key.type] for name, key in table.keys.items()}
    ensure_equal(subject.call("ernie_match_settings", content=whole), len(whole), "keys in a file of all keys")
    for content in ({}, {UNKNOWN: 1}):
        ensure_equal(subject.call("ernie_match_settings", content=content), 0, f"keys in {content}")


def check_importer_accounts_for_every_key(subject: Subject) -> None:
    """Each key of a file is mapped, dropped with a reason, unknown, or has a problem; none is both mapped and dropped."""
    for content in _contents(subject):
        outcome = _import(subject, content)
        found = {*outcome.mapped, *outcome.dropped, *outcome.unknown, *outcome.problems}
        ensure_equal(found, set(content), "keys that are accounted for")
        both = set(outcome.mapped) & set(outcome.dropped)
        ensure(not both, f"both mapped and dropped: {', '.join(sorted(both))}")
        ensure(all(outcome.dropped.values()), "a key is dropped without a reason")
    ensure_equal(outcome.unknown, (UNKNOWN,), "unknown keys of a file with one")


def check_importer_writes_plain_settings(subject: Subject) -> None:
    """Settings have sections of ours, and values that JSON can write."""
    for content in _contents(subject):
        for key, setting in _import(subject, content).settings.items():
            ensure(key.partition(".")[0] in SECTIONS, f"{key} is in no section; there are {', '.join(SECTIONS)}")
            try:
                json.dumps(setting.value)
            except TypeError as error:
                raise CheckFailed(f"{key} has a value that is not plain: {error}") from error


def check_importer_is_pure(subject: Subject) -> None:
    """Importing a file twice gives the same, and leaves its content as it was."""
    for content in _contents(subject):
        before = copy.deepcopy(content)
        first = _import(subject, content)
        ensure_equal(content, before, "the content after an import")
        ensure_equal(_import(subject, content), first, "a second import")


def check_importer_survives_strange_values(subject: Subject) -> None:
    """A value that a key cannot have is a problem of that key; nothing is raised."""
    for name in _table(subject).keys:
        for value in STRANGE:
            try:
                _import(subject, {name: value})
            except Exception as error:
                raise CheckFailed(f"raised {type(error).__name__}: {error} for {name}: {str(value)[:20]!r}") from error


CHECKS = (
    Check(check_importer_describes_every_key),
    Check(check_importer_recognizes_its_own),
    Check(check_importer_accounts_for_every_key),
    Check(check_importer_writes_plain_settings),
    Check(check_importer_is_pure),
    Check(check_importer_survives_strange_values),
)
