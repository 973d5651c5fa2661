"""The entries of a token cache, and the removal of those that are not used. Runs write and read them."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from erniecore_system.locks import try_locked

from erniecore.api.files import read_json

_ENTRY = "entry.json"
_DAY = 86400.0


@dataclass(frozen=True)
class CacheEntry:
    """One entry. ``used``: seconds since 1970; ``complete``: whether it holds every sample of its file."""

    key: str
    file: str
    rows: int
    bytes: int
    used: float
    complete: bool

    @property
    def used_text(self) -> str:
        """Date and time of the last use."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.used))

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return asdict(self)


def entries(directory: Path) -> list[CacheEntry]:
    """All entries, those used last first; nothing without a cache. Other directories are passed over."""
    found = [_entry(path) for path in directory.iterdir() if _is_entry(path)] if directory.is_dir() else []
    return sorted(found, key=lambda e: -e.used)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and (path / "use.lock").is_file()


def _entry(path: Path) -> CacheEntry:
    shards = list(path.glob("*.tokens"))
    size = sum(shard.stat().st_size for shard in shards)
    try:
        facts = read_json(path / _ENTRY)
        used = (path / _ENTRY).stat().st_mtime
        return CacheEntry(path.name, str(facts["about"]["file"]), int(facts["rows"]), size, used, complete=True)
    except (OSError, ValueError, KeyError, TypeError):
        used = max((p.stat().st_mtime for p in (path, *shards)), default=0.0)
        return CacheEntry(path.name, "", 0, size, used, complete=False)


def remove_old(directory: Path, days: float) -> list[CacheEntry]:
    """Remove entries that were last used ``days`` ago or before, unless a process uses or writes them; the removed ones."""
    before = time.time() - days * _DAY
    return [entry for entry in entries(directory) if entry.used <= before and _remove(directory / entry.key)]


def _remove(path: Path) -> bool:
    build, use = try_locked(path, "build"), try_locked(path, "use")
    try:
        if build is None or use is None:
            return False
        shutil.rmtree(path)
        return True
    finally:
        for lock in (build, use):
            if lock is not None:
                lock.close()
