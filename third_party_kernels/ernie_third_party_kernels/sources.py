"""Which sources a library was compiled from: a mark in it that changes with them, so that a library older than its sources
is not called. For ``setup.py``, which has no dependencies, and for ``library.py``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent


def mark(folder: Path = FOLDER) -> str:
    """Of the C++ sources in ``folder``; it stands in every library that is compiled from them."""
    digest = hashlib.sha256()
    for path in _sources(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return f"ernie-sources:{digest.hexdigest()[:32]}"


def is_current(library: Path, folder: Path = FOLDER) -> bool:
    """Whether ``library`` was compiled from the sources that are in ``folder`` now; files are read again once they change."""
    facts = ((path, path.stat()) for path in (library, *_sources(folder)))
    return _is_current(library, folder, tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in facts))


@lru_cache(maxsize=8)
def _is_current(library: Path, folder: Path, state: tuple[tuple[Path, int, int], ...]) -> bool:
    """``state`` is the key only."""
    return mark(folder).encode() in library.read_bytes()


def _sources(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.h"), *folder.glob("*/*.h"), *folder.glob("*/kernel.cpp")])
