"""The keys of another toolkit as a table: each becomes settings of ours, or nothing, with the reason. Names no toolkit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from erniecore.api import nearest
from erniecore_key_tables import values


@dataclass(frozen=True, slots=True)
class Left:
    """A value that becomes no setting. ``differs``: the training would be another one in the toolkit; ``ignored``: it means
    nothing in the toolkit either, and the user should know."""

    reason: str
    differs: bool = False
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of one key.

    Attributes:
        old: its name. type: of ``values.TYPES``. default: in the toolkit, where the key is absent.
        new: the settings that it becomes, separated by commas; empty: none.
        note: why it becomes none, or how its value is converted.
        convert: for a key that stands alone, from its value to ours or to :class:`Left`.
        together: converted by a step with other keys.
    """

    old: str
    type: str
    default: Any
    new: str = ""
    note: str = ""
    convert: Callable[[Any], Any] | None = None
    together: bool = False


def renamed(old: str, type: str, default: Any, new: str, note: str = "", convert: Any = None) -> Key:
    """A key that becomes one setting, whatever else the file says."""
    return Key(old, type, default, new, note, convert)


def part(old: str, type: str, default: Any, new: str, note: str = "") -> Key:
    """A key whose meaning depends on others."""
    return Key(old, type, default, new, note, together=True)


def without(note: str, *keys: tuple[str, str, Any]) -> tuple[Key, ...]:
    """Keys that become nothing, all for the same reason."""
    return tuple(Key(*key, "", note) for key in keys)


def ignored(old: str, note: str) -> Key:
    """A key that files have and the toolkit does not: it goes on without it."""
    return Key(old, "any", None, "", note, lambda value: Left(note, ignored=True))


def only(old: str, type: str, default: Any, harmless: Any, note: str, otherwise: str) -> Key:
    """A key that becomes nothing: without a loss where it has the value ``harmless``, else the training differs."""

    def convert(value: Any) -> Left:
        return Left(note) if value == harmless else Left(otherwise, differs=True)

    return Key(old, type, default, "", f"`{shown(harmless)}`: {note}. Else: {otherwise}", convert)


def shown(value: Any) -> str:
    """A value as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


@dataclass(frozen=True)
class KeyTable:
    """Every key of a toolkit.

    Attributes:
        toolkit: its name, for messages. version: the one that the defaults are of.
        groups: heading -> keys, in the order of the reference.
        telling: keys one of which a file must have to be this toolkit's.
        unknown_reason: what is wrong with a key that is not in the table, for errors.
    """

    toolkit: str
    version: str
    groups: Mapping[str, tuple[Key, ...]]
    telling: frozenset[str]
    unknown_reason: str

    @cached_property
    def keys(self) -> Mapping[str, Key]:
        """All keys by their name."""
        return {key.old: key for keys in self.groups.values() for key in keys}

    def match(self, content: Mapping[str, Any]) -> int:
        """How many keys of a file the toolkit has; 0 where the file has none that tells."""
        return sum(top(key) in self.keys for key in content) if self.telling & set(content) else 0

    def suggestion(self, key: str) -> str:
        """The known key that an unknown one may have been meant as; empty: none is similar."""
        return nearest(key, self.keys, cutoff=0.7) or ""

    def split(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Known keys with their values, and the unknown ones. ``a.b`` belongs to ``a`` where that takes anything."""
        flat: dict[str, Any] = {}
        unknown = []
        for key, value in given.items():
            name = key if key in self.keys else top(key)
            if name not in self.keys or (name != key and self.keys[name].type != "any"):
                unknown.append(key)
            else:
                flat.setdefault(name, value)
        return flat, unknown

    def readable(self, flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """The values that are of the type of their key, and what is wrong with the others: they count as absent."""
        good: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for old, value in flat.items():
            try:
                if not values.is_empty(value):
                    values.TYPES[self.keys[old].type](value)
                good[old] = value
            except ValueError as error:
                problems[old] = str(error)
        return good, problems


def top(key: str) -> str:
    """The first component of a key: ``vision_config`` of ``vision_config.depth``."""
    return key.partition(".")[0]
