"""The files behind the path of a data source, and their content.

A file is itself; a directory is a data set (``folders.py``), of which ``DIR:train`` names a split. A pattern such as
``part-*.jsonl`` names all files that it matches, as if they were one.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erniecore_system.files import file_hash

from erniecore import codes
from erniecore.data.file_types import FileTypes
from erniecore.errors import DataError


def shards_of(path: Path) -> tuple[Path, ...]:
    """The files behind ``path``: itself, or those of a data set directory in the order of its rows.

    Raises:
        DataError: the directory holds no data set, or several splits, or not the one that ``DIR:split`` names; no file
            matches a pattern.
    """
    if glob.has_magic(str(path)) and not os.path.exists(path):
        return _matching(path)
    directory, split = _directory(path)
    if directory is None:
        return (path,)
    from erniecore.data.folders import files_of_split

    return _of_one_kind(files_of_split(directory, split), directory)


def unread(path: Path) -> dict[str, list[Path]]:
    """Why -> which files in the directory of a data set are not read; nothing for a file."""
    directory, _ = _directory(path)
    if directory is None:
        return {}
    from erniecore.data.folders import unread_files

    return unread_files(directory)


def content_of(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a data file; of a data set directory, over the files of the split.

    Raises ``DataError`` for a directory that holds no data set, ``OSError`` for a file that cannot be read."""
    files = shards_of(path)
    if files == (path,):
        return {"path": str(path), "bytes": path.stat().st_size, "sha256": file_hash(path)}
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n{file_hash(file)}\n".encode())
    return {"path": str(path), "bytes": sum(f.stat().st_size for f in files), "sha256": digest.hexdigest()}


def stamp_of(path: Path) -> tuple[tuple[int, ...], ...]:
    """Changes when a file, or one of a data set directory, is written to while it is read."""
    return tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in (f.stat() for f in shards_of(path)))


def _matching(pattern: Path) -> tuple[Path, ...]:
    """The files that a pattern names, by name."""
    files = [Path(file) for file in sorted(glob.glob(str(pattern), recursive=True)) if os.path.isfile(file)]
    if not files:
        fix = "check the pattern; the working directory is " + os.getcwd()
        raise DataError("no file matches", code=codes.MISSING_FILE, where=str(pattern), expected="a file", fix=fix)
    return _of_one_kind(files, pattern)


def _of_one_kind(files: Sequence[Path], where: Path) -> tuple[Path, ...]:
    types = FileTypes()
    endings = sorted({types.of(file).ending for file in files})
    if len(endings) > 1:
        raise DataError(
            "there are several kinds of file with the same rows",
            code=codes.WHICH_SPLIT,
            where=str(where),
            found=", ".join(endings),
            fix=f"name the files, such as {files[0]}",
        )
    return tuple(files)


def _directory(path: Path) -> tuple[Path | None, str]:
    """The directory that a path names, and the split behind its colon."""
    if os.path.isdir(path):
        return path, ""
    name, colon, split = path.name.rpartition(":")
    if colon and name and not os.path.exists(path) and os.path.isdir(path.with_name(name)):
        return path.with_name(name), split
    return None, ""
