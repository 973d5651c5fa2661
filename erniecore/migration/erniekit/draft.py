"""One file on its way: what was given, what it became, what the user must know. Decides nothing about any key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from erniecore.migration.erniekit import values
from erniecore.migration.erniekit.key import Left
from erniecore.migration.erniekit.table import KEYS

NoticeKind = Literal["effective", "default", "differs", "hint"]
Purpose = Literal["train", "eval", "chat", "export"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to know. ``effective``: the value that ERNIEKit really used; ``default``: its default, written out;
    ``differs``: what cannot be as it was; ``hint``: what to use instead. ``keys``: of ERNIEKit."""

    kind: NoticeKind
    keys: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{', '.join(self.keys)}: {self.text}" if self.keys else self.text


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of ours. ``olds``: the keys that it comes from; empty: ERNIEKit's default of ``default_of``."""

    value: Any
    olds: tuple[str, ...]
    default_of: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the outcome may depend on besides the file.

    Attributes:
        device: the plugin that will compute. dtypes: those that it has; empty: nobody knows.
        config: content of the model directory's config.json; None without a directory.
    """

    device: str = "cpu"
    dtypes: frozenset[str] = frozenset({"float32"})
    config: Mapping[str, Any] | None = None


@dataclass
class Draft:
    """The state of a conversion; the functions of ``convert_*.py`` fill it."""

    given: Mapping[str, Any]
    around: Surroundings = field(default_factory=Surroundings)
    purpose: Purpose = "train"
    settings: dict[str, Setting] = field(default_factory=dict)
    mapped: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def has(self, old: str) -> bool:
        """Whether the file gives a value; null is none."""
        return old in self.given and not values.is_empty(self.given[old])

    def get(self, old: str) -> Any:
        """The value, typed; ERNIEKit's default where there is none. A value of the wrong type becomes a problem."""
        key = KEYS[old]
        if not self.has(old):
            return key.default
        try:
            return values.TYPES[key.type](self.given[old])
        except ValueError as error:
            self.fault(old, str(error))
            return key.default

    def fault(self, old: str, message: str) -> None:
        """A value that means nothing, in ERNIEKit either."""
        self.problems.setdefault(old, message)

    def set(self, new: str, value: Any, *olds: str) -> None:
        """A setting, and the given keys among ``olds`` as mapped to it. Without one of them given it is a default."""
        given = tuple(old for old in olds if self.has(old))
        if new in self.settings and self.settings[new].value == value:
            given = tuple(dict.fromkeys((*self.settings[new].olds, *given)))
        self.settings[new] = Setting(value, given, "" if given else next(iter(olds), ""))
        for old in given:
            known = self.mapped.get(old)
            if new not in (known or "").split(", "):
                self.mapped[old] = f"{known}, {new}" if known else new
            self.dropped.pop(old, None)

    def carry(self, old: str, new: str, *, pin: bool = False) -> None:
        """A value as it is, if it is given; with ``pin`` ERNIEKit's default if not."""
        if self.has(old) or (pin and self.purpose == "train"):
            self.set(new, self.get(old), old)

    def drop(self, reason: str, *olds: str) -> None:
        """The given keys among ``olds`` become nothing."""
        for old in olds:
            if old in self.given and old not in self.mapped:
                self.dropped[old] = reason

    def leave(self, left: Left, old: str) -> None:
        """As :meth:`drop`, with a notice if the training differs."""
        self.drop(left.reason, old)
        if left.differs and old in self.given:
            self.note("differs", left.reason, old)

    def note(self, kind: NoticeKind, text: str, *olds: str) -> None:
        """Something to know."""
        self.notices.append(Notice(kind, olds, text))

    def finish(self, olds: Iterable[str]) -> None:
        """Empty values of known keys say nothing; every default that was written out becomes a part of one notice."""
        for old in olds:
            if old in self.given and old not in self.mapped and old not in self.dropped and not self.has(old):
                self.dropped[old] = "empty, which is the same as leaving it out"
        pinned = {new: s for new, s in self.settings.items() if not s.olds and s.default_of}
        if pinned:
            text = ", ".join(f"{new} {_shown(s.value)} ({s.default_of})" for new, s in pinned.items())
            self.note("default", f"defaults of ERNIEKit made explicit: {text}")


def _shown(value: Any) -> str:
    return (
        {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    )
