"""Rows that are found by a walk over directories: believed for some seconds, the newest first, searched by their place."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from erniecore_webui.state_files import is_text

#: seconds for which a list is believed
_FRESH = 3.0


class _Row(Protocol):
    @property
    def place(self) -> str: ...
    @property
    def changed(self) -> float: ...


R = TypeVar("R", bound=_Row)


class Listing(ABC, Generic[R]):
    """What :meth:`look` finds. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, R] = {}
        self._until = 0.0

    @abstractmethod
    def look(self) -> Iterable[R]:
        """Every row, in any order."""

    def found(self) -> dict[str, R]:
        """Place -> row, the newest first."""
        with self._lock:
            if time.monotonic() > self._until:
                rows = sorted(self.look(), key=lambda row: (-row.changed, row.place))
                self._found = {row.place: row for row in rows}
                self._until = time.monotonic() + _FRESH
            return self._found

    def at(self, place: str) -> R | None:
        """The row at a place, also one that is new; None: there is nothing."""
        row = self.found().get(place)
        if row is None:
            self.forget()
            row = self.found().get(place)
        return row

    def forget(self) -> None:
        """Look again at the next question."""
        self._until = 0.0

    def select(self, text: str) -> list[R]:
        """Those whose place has every word of ``text``."""
        terms = text.lower().split()
        return [row for row in self.found().values() if all(term in row.place.lower() for term in terms)]


def scan(directory: str, left: list[int], skipped: Collection[str]) -> tuple[list[str], list[os.DirEntry[str]]]:
    """Paths of the folders of a directory, and its other entries, without names that are hidden, skipped or no text. Links are
    not followed.

    Args:
        left: one number, of entries that may still be looked at; counted down. Below 0 nothing more is found.
        skipped: names.
    """
    folders, others = [], []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                return [], []
            # no page can show or send a name that is no text
            if entry.name.startswith(".") or entry.name in skipped or not is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                others.append(entry)
    return sorted(folders), others
