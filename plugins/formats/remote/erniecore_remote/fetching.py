"""A URL to files here: which files it stands for, their versions, and copies of those that are not here yet.

Copying goes block by block, so a file of any size takes the memory of one. A cut connection costs its block; an attempt that
was killed is continued by the next one, whichever process that is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import IO, Any

from erniecore_system.locks import locked

from erniecore.api import DataError, EnvironmentFault
from erniecore.api.data import codes
from erniecore.api.installation import free_bytes, size_text
from erniecore_remote.servers import Server
from erniecore_remote.store import directory_name, home_of, version_of

#: bytes that are asked for at once
BLOCK = 8 << 20
#: attempts without a byte of progress, and seconds between them, longer each time
TRIES, PAUSE = 4, 0.5
#: bytes that stay free on the disk, whatever a server sends
RESERVE = 1 << 30


def fetch(url: str, *, listed: bool, package: str) -> Path:
    """The file, pattern or directory that ``url`` names, here.

    Args:
        listed: a URL may also be a directory or a pattern. package: what to install where fsspec lacks the scheme.

    Raises:
        DataError: there is no such file, or it changes. EnvironmentFault: a package is missing, the server does not answer, or
            the disk has no room.
    """
    server = Server(url, package)
    files, found = server.files(listed)
    infos = {name: server.info(path) for name, path in files.items()}
    versions = {name: _version(info, url) for name, info in infos.items()}
    home = home_of(url)
    target = home / directory_name(versions)
    if not target.is_dir():
        with _kept(home):
            home.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(home, "fetch")
        with lock, _kept(home):
            if not target.is_dir():
                _fetch_all(server, files, infos, target)
    return Path(f"{target}{found}") if found.startswith(":") else target / found


@contextmanager
def _kept(home: Path) -> Iterator[None]:
    """Errors of the disk as ours."""
    try:
        yield
    except OSError as e:
        fix = "XDG_CACHE_HOME names another place for caches"
        raise EnvironmentFault("the file cannot be kept", where=str(home), found=str(e), fix=fix) from e


def _version(info: Mapping[str, Any], url: str) -> str:
    """Raises ``DataError`` where the server says nothing that changes with the file."""
    if version := version_of(info):
        return version
    raise DataError(
        "the server does not tell versions of the file apart",
        code=codes.MISSING_FILE,
        where=url,
        found="neither ETag nor Last-Modified",
        fix=f"fetch it yourself and name the file: curl -LO '{url}'",
    )


def _fetch_all(server: Server, files: Mapping[str, str], infos: Mapping[str, Mapping[str, Any]], target: Path) -> None:
    unfinished = target.with_name(target.name + ".part")
    for name, path in files.items():
        whole = unfinished / name
        if whole.is_file():
            continue
        whole.parent.mkdir(parents=True, exist_ok=True)
        part = whole.with_name(f".{whole.name}.part")
        copy(server, path, infos[name].get("size"), part)
        if version_of(server.info(path)) != version_of(infos[name]):
            part.unlink()
            raise DataError(
                "the file changed while it was fetched",
                code=codes.CHANGED_WHILE_READ,
                where=server.url,
                found=name,
                fix="repeat the command when nobody writes to it",
            )
        part.replace(whole)
    unfinished.replace(target)


def copy(server: Server, path: str, size: int | None, part: Path) -> None:
    """The bytes of a file behind those that ``part`` has, to its end. Raises as :func:`fetch`."""
    with part.open("ab") as out:
        if size is None or not _copy_blocks(server, path, size, out):
            out.truncate(0)
            for data in server.pieces(path, BLOCK):
                _require_room(server, part, len(data))
                out.write(data)
                if size is not None and out.tell() > size:
                    raise server.unreachable(EOFError("the file is longer"), f"than {size} bytes")
        if size is not None and out.tell() != size:
            raise server.unreachable(EOFError("the file is shorter"), f"{out.tell()} of {size} bytes")
        out.flush()
        os.fsync(out.fileno())


def _require_room(server: Server, part: Path, size: int) -> None:
    if (free := free_bytes(part.parent)) < size + RESERVE:
        raise EnvironmentFault(
            "the disk has no room for the file",
            where=server.url,
            found=f"{size_text(free)} are free",
            expected=f"{size_text(size + RESERVE)}, of which {size_text(RESERVE)} stay free",
            fix="XDG_CACHE_HOME names another place for caches",
        )


def _copy_blocks(server: Server, path: str, size: int, out: IO[bytes]) -> bool:
    """Whether the server gives parts of files at all."""
    failures = 0
    _require_room(server, Path(out.name), size - out.tell())
    while (here := out.tell()) < size:
        try:
            data = server.block(path, here, min(here + BLOCK, size))
            if not data:
                raise EOFError("no more bytes")
        except ValueError:
            return False
        except server.failures as error:
            failures += 1
            if failures == TRIES:
                raise server.unreachable(error, f"after {here} of {size} bytes") from error
            sleep(PAUSE * failures)
            continue
        failures = 0
        out.write(data)
    return True
