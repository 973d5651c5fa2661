"""Files that somebody else may have written, read within limits. Imports nothing heavy.

No device, pipe or socket is opened, no file is read beyond its limit, and JSON has no more levels, digits or letters in a
name than its readers stand. What is refused is an ``OSError`` (of the file) or a ``ValueError`` (of its content).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from erniecore_system.hashing import stream_hash

#: bytes of a file that is read at once
MAX_BYTES = 256 << 20
#: of JSON: levels of brackets, characters of a name, characters of a number
MAX_DEPTH, MAX_NAME, MAX_NUMBER = 100, 8192, 400

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path) -> IO[bytes]:
    """A file for reading. Raises ``OSError`` where it is missing, or is anything but a regular file."""
    kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    if kind is not None:
        raise OSError(errno.EINVAL, f"this is {kind}, not a file", str(path))
    return path.open("rb")


def file_hash(path: Path) -> str:
    """sha256 of a file of any size. Raises ``OSError`` as :func:`open_file`."""
    with open_file(path) as stream:
        return stream_hash(stream)


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a file. Raises ``OSError`` as :func:`open_file`, and where it has more than ``most`` bytes."""
    with open_file(path) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EINVAL, f"larger than {most} bytes", str(path))
    return data


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file. Raises ``OSError`` as :func:`read_bytes`, ``ValueError`` for another encoding."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def read_json(path: Path, most: int = MAX_BYTES) -> Any:
    """The value in a JSON file. Raises ``OSError`` as :func:`read_bytes`, ``ValueError`` as :func:`parse_json`."""
    return parse_json(read_bytes(path, most))


def read_object(path: Path, error: Callable[..., Exception], **more: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        error: a class of ``erniecore.errors``. more: its further arguments, such as ``code`` and ``fix``.

    Raises:
        ``error``: the file cannot be read, or holds anything else.
    """
    try:
        value = read_json(path)
    except OSError as e:
        raise error("this file cannot be read", where=str(path), found=e.strerror or str(e), **more) from e
    except ValueError as e:
        raise error("this file is not valid JSON", where=str(path), found=str(e), **more) from e
    if not isinstance(value, dict):
        raise error("this file is no JSON object", where=str(path), found=type(value).__name__, **more)
    return value


def check_links(directory: Path, error: Callable[..., Exception]) -> None:
    """Raise ``error`` for the first file of a model directory that is a link to another place; see ``links.py``."""
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as entries:
        has_links = any(entry.is_symlink() for entry in entries)
    if has_links:
        from erniecore_system.links import check

        check(directory, error)


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ``ValueError``, one line: not JSON, not UTF-8, or beyond the limits."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and depth(text) > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return _DECODER.decode(text)


def depth(text: str) -> int:
    """Deepest nesting of the brackets of a JSON text."""
    level = deepest = 0
    inside = escaped = False
    for c in text:
        if inside:
            inside, escaped = c != '"' or escaped, c == "\\" and not escaped
        elif c == '"':
            inside = True
        elif c in "[{":
            level += 1
            deepest = max(deepest, level)
        elif c in "]}":
            level -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, _ in pairs:
        if len(name) > MAX_NAME:
            raise ValueError(f"a name has {len(name)} characters, more than {MAX_NAME}")
    return dict(pairs)


def _int(text: str) -> int:
    return int(_short(text))


def _float(text: str) -> float:
    return float(_short(text))


def _short(number: str) -> str:
    if len(number) > MAX_NUMBER:
        raise ValueError(f"a number has {len(number)} characters, more than {MAX_NUMBER}")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float)


def cache_home(environ: Mapping[str, str] | None = None) -> Path:
    """The directory of the user's caches: ``$XDG_CACHE_HOME``, by default ``~/.cache``; ``environ``: default ``os.environ``."""
    given = os.environ if environ is None else environ
    home = given.get("XDG_CACHE_HOME", "")
    return Path(home) if home else Path(given.get("HOME") or "~").expanduser() / ".cache"
