"""Small files of our own that a process may be writing: read forgivingly, since another look comes soon."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from erniecore.api.files import read_json

_MOST = 1 << 24


def stored_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ``{}`` where there is none, or none that can be read."""
    try:
        content = read_json(path, _MOST)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def kept_secret(path: Path) -> str:
    """A random secret that only the owner of the file reads; made where there is none."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    while True:
        try:
            token = path.read_text(encoding="ascii").strip()
            if len(token) >= 32:
                return token
            path.unlink(missing_ok=True)
        except UnicodeDecodeError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        part.touch(mode=0o600)
        part.write_text(secrets.token_urlsafe(32), encoding="ascii")
        # it appears whole, and who comes second takes the first one's
        with suppress(FileExistsError):
            os.link(part, path)
        part.unlink()


def is_text(name: str) -> bool:
    """Whether a file's name is text: the system also takes bytes that are none."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Ours alone, among threads and servers; released by the kernel when the process is killed."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
