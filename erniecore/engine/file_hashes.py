"""Hashes of files by content, remembered in the user's cache: a file is read again only where something has happened to it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from erniecore.data.splits import user_cache
from erniecore.durable import file_hash, replace_file
from erniecore.files import read_json

#: smaller files are always read
_SMALL = 1 << 20
#: files that are remembered, the last ones that were asked for
_MOST = 2000
#: seconds since its last change after which a file counts as written: file systems have coarse clocks
_SETTLED = 2.0


class FileHashes:
    """sha256 of files. What was remembered is read at the start of the block and written at its end, if there is more."""

    def __enter__(self) -> FileHashes:
        self._path, self._known, self._more = user_cache().with_name("hashes.json"), dict[str, list[object]](), False
        with suppress(OSError, ValueError):
            found = read_json(self._path)
            self._known = found if isinstance(found, dict) else {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._more:
            kept = dict(list(self._known.items())[-_MOST:])
            with suppress(OSError):  # a cache that cannot be written costs time only
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, json.dumps(kept).encode())

    def of(self, directory: str, patterns: Sequence[str]) -> dict[str, str]:
        """Name -> sha256 of the files in ``directory`` that match a pattern, or a pattern behind ``folder/``."""
        found: dict[str, str] = {}
        for folder in dict.fromkeys(pattern.rpartition("/")[0] for pattern in patterns) if directory else ():
            wanted = [p.rpartition("/")[2] for p in patterns if p.rpartition("/")[0] == folder]
            place = Path(directory, folder)
            for path in sorted(place.iterdir()) if place.is_dir() else ():
                if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in wanted) and path.is_file():
                    found[os.path.join(folder, path.name)] = self._hash(path)
        return found

    def of_file(self, path: str) -> dict[str, str]:
        """The same for one file; nothing where there is none of this name."""
        return {path: self._hash(Path(path))} if path and os.path.isfile(path) else {}

    def _hash(self, path: Path) -> str:
        try:
            stat = path.stat()
            state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
            key = str(path.resolve())
            entry = self._known.pop(key, None)
            if isinstance(entry, list) and entry[:-1] == state and isinstance(entry[-1], str):
                self._known[key] = entry
                return entry[-1]
            value = file_hash(path)
        except OSError as error:  # whoever opens it says so
            return f"unreadable: {error.strerror}"
        if stat.st_size >= _SMALL and time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
            self._known[key], self._more = [*state, value], True
        return value


def digest_of(entries: Mapping[str, str]) -> str:
    """One sha256 of names and hashes."""
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in sorted(entries.items())).encode()).hexdigest()
