"""One foreign file on its way: what was given, what it became, what the user must know. Decides nothing about any key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from erniecore.api.importer import ImportedSetting, ImportNote, NoteKind
from erniecore_key_tables import values
from erniecore_key_tables.table import KeyTable, Left, shown


@dataclass(kw_only=True)
class Draft:
    """The state of a conversion; the steps of an importer fill it.

    Attributes:
        table: of the toolkit. given: known keys with readable values. purpose: what the file is for; only ``train`` writes
            defaults out.
        settings, mapped, dropped, notes, problems: as in ``Imported``.
    """

    table: KeyTable
    given: Mapping[str, Any]
    purpose: str = "train"
    settings: dict[str, ImportedSetting] = field(default_factory=dict)
    mapped: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[ImportNote] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def has(self, old: str) -> bool:
        """Whether the file gives a value; null is none."""
        return old in self.given and not values.is_empty(self.given[old])

    def get(self, old: str) -> Any:
        """The value, typed; the toolkit's default where there is none. A value of the wrong type becomes a problem."""
        key = self.table.keys[old]
        if not self.has(old):
            return key.default
        try:
            return values.TYPES[key.type](self.given[old])
        except ValueError as error:
            self.fault(old, str(error))
            return key.default

    def fault(self, old: str, message: str) -> None:
        """A value that means nothing, in the toolkit either."""
        self.problems.setdefault(old, message)

    def set(self, new: str, value: Any, *olds: str) -> None:
        """A setting, and the given keys among ``olds`` as mapped to it. Without one of them given it is a default."""
        given = tuple(old for old in olds if self.has(old))
        if new in self.settings and self.settings[new].value == value:
            given = tuple(dict.fromkeys((*self.settings[new].keys, *given)))
        self.settings[new] = ImportedSetting(value, given, "" if given else next(iter(olds), ""))
        for old in given:
            known = self.mapped.get(old)
            if new not in (known or "").split(", "):
                self.mapped[old] = f"{known}, {new}" if known else new
            self.dropped.pop(old, None)

    def carry(self, old: str, new: str, *, pin: bool = False) -> None:
        """A value as it is, if it is given; with ``pin`` the toolkit's default if not."""
        if self.has(old) or (pin and self.purpose == "train"):
            self.set(new, self.get(old), old)

    def drop(self, reason: str, *olds: str) -> None:
        """The given keys among ``olds`` become nothing."""
        for old in olds:
            if old in self.given and old not in self.mapped:
                self.dropped[old] = reason

    def leave(self, left: Left, old: str) -> None:
        """As :meth:`drop`, with a note if the training differs."""
        self.drop(left.reason, old)
        if (left.differs or left.ignored) and old in self.given:
            self.note("differs" if left.differs else "hint", left.reason, old)

    def note(self, kind: NoteKind, text: str, *olds: str) -> None:
        """Add a note on these keys."""
        self.notes.append(ImportNote(kind, olds, text))

    def finish(self, olds: Iterable[str]) -> None:
        """Empty values of known keys say nothing; every default that was written out becomes a part of one note."""
        for old in olds:
            if old in self.given and old not in self.mapped and old not in self.dropped and not self.has(old):
                self.dropped[old] = "empty, which is the same as leaving it out"
        pinned = {new: s for new, s in self.settings.items() if not s.keys and s.default_of}
        if pinned:
            text = ", ".join(f"{new} {shown(s.value)} ({s.default_of})" for new, s in pinned.items())
            self.note("default", f"defaults of {self.table.toolkit} made explicit: {text}")
