"""One row of the table of ERNIEKit keys, and short ways to write it. No key is named here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Left:
    """A value that becomes no setting. ``differs``: the training would be another one in ERNIEKit."""

    reason: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of one key.

    Attributes:
        old: its name. type: of ``values.TYPES``. default: in ERNIEKit 1.3, where the key is absent.
        new: the settings that it becomes, separated by commas; empty: none.
        note: why it becomes none, or how its value is converted.
        convert: for a key that stands alone, from its value to ours or to :class:`Left`.
        together: converted by a function of ``convert*.py`` with other keys.
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


def only(old: str, type: str, default: Any, harmless: Any, note: str, otherwise: str) -> Key:
    """A key that becomes nothing: without a loss where it has the value ``harmless``, else the training differs."""

    def convert(value: Any) -> Left:
        return Left(note) if value == harmless else Left(otherwise, differs=True)

    return Key(old, type, default, "", f"`{_shown(harmless)}`: {note}. Else: {otherwise}", convert)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
