"""fsspec's view of the place that a URL names, with errors that say what to do.

Its own settings apply: the variables ``FSSPEC_…`` and the files in ``~/.config/fsspec``; credentials are those that its packages
look for, such as ``AWS_ACCESS_KEY_ID`` and ``~/.netrc``, proxies those of the environment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from glob import has_magic
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from erniecore_catalog import install_command

from erniecore.api import DataError, EnvironmentFault
from erniecore.api.data import codes
from erniecore.api.rows import FileTypes
from erniecore_remote.reading import read_part

#: seconds until a server that says nothing has failed
_SILENT = 60


class Server:
    """The place of one URL.

    Attributes:
        url: as in errors. failures: what its client raises where the connection is at fault.

    Raises:
        EnvironmentFault: a package is missing. DataError: the URL has a password.
    """

    def __init__(self, url: str, package: str) -> None:
        self.url = url
        if urlsplit(url).password is not None:
            self.url = url.replace(urlsplit(url).netloc.rpartition("@")[0], "…", 1)
            fix = "write it into ~/.netrc, or where the client of the scheme looks for it"
            raise self._refused("a URL with a password would stand in the files of the run", "", fix)
        try:
            fsspec = import_module("fsspec")
            self._fs, self._root = fsspec.core.url_to_fs(url, **_options(fsspec, url))
        except ImportError as e:
            fix = install_command(package, of="erniecore-remote")
            raise EnvironmentFault(f"URLs of this scheme need {package}", where=url, found=str(e), next=fix) from e
        clients = [import_module("aiohttp").ClientError] if find_spec("aiohttp") else []
        if url.startswith("s3:"):
            errors = import_module("botocore.exceptions")
            clients += [errors.BotoCoreError, errors.HTTPClientError]
            logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials
        self.failures: tuple[type[Exception], ...] = (OSError, EOFError, TimeoutError, *clients)

    def files(self, listed: bool) -> tuple[dict[str, str], str]:
        """(name here, which may have directories -> path there) of the files that the URL stands for, and what to name here:
        the file, the pattern, or nothing but a split for the directory. ``listed``: the URL may name several."""
        root = self._root.rstrip("/")
        name = PurePosixPath(unquote(urlsplit(self.url).path) if not listed else root).name
        if listed and has_magic(root):
            base = root[: next(i for i, sign in enumerate(root) if sign in "*?[")].rpartition("/")[0]
            with self._answers():
                return self._below(base, self._fs.glob(root)), root[len(base) :].lstrip("/")
        if listed:
            path, split = self._directory(root)
            if path:
                with self._answers():
                    return self._below(path, self._fs.find(path)), split
        if name in ("", "..") or "\0" in name:
            raise self._refused("the URL names no file", repr(name), "name a file, such as …/rows.jsonl")
        return {name: self._root}, name

    def _directory(self, root: str) -> tuple[str, str]:
        """The directory that is named, and the split behind its colon."""
        with self._answers():
            if self._fs.isdir(root):
                return root, ""
            path, colon, split = root.rpartition(":")
            if colon and "/" not in split and not self._fs.exists(root) and self._fs.isdir(path):
                return path, f":{split}"
        return "", ""

    def _below(self, base: str, paths: list[str]) -> dict[str, str]:
        """Of these paths those that an installed reader reads."""
        types, found = FileTypes(), {}
        for path in sorted(paths):
            name = path[len(base) :].lstrip("/")
            parts = PurePosixPath(name).parts
            if types.of(Path(name)).reader and not any(part[0] in "._" for part in parts):
                found[name] = path
        if not found:
            endings = "files with one of the endings " + ", ".join(types.endings())
            raise self._refused("there is no data file", f"{len(paths)} files", "check the URL", endings)
        return found

    def info(self, path: str) -> dict[str, Any]:
        """What the server says of a file now. Raises ``DataError`` where there is none."""
        with self._answers():
            self._fs.invalidate_cache()
            return dict(self._fs.info(path))

    def block(self, path: str, start: int, end: int) -> bytes:
        """Some bytes of a file. Raises one of ``failures``; ``ValueError``: the server gives whole files alone."""
        return read_part(self._fs, path, start, end)

    def pieces(self, path: str, size: int) -> Iterator[bytes]:
        """All bytes of a file, at most ``size`` of them at a time. Raises ``EnvironmentFault``."""
        done = 0
        try:
            with self._fs.open(path, "rb", block_size=0) as source:
                while data := source.read(size):
                    yield data
                    done += len(data)
        except self.failures as e:
            raise self.unreachable(e, f"after {done} bytes") from e

    def unreachable(self, error: Exception, found: str = "") -> EnvironmentFault:
        """The error for a server that does not answer, or not to the end."""
        text = " ".join(f"{type(error).__name__} {error} {found}".split())[:300]
        fix = "repeat the command: what is here is kept"
        return EnvironmentFault("the file cannot be fetched", where=self.url, found=text, fix=fix)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Errors of the client as ours. Of HTTP, the status is in what a ``FileNotFoundError`` was caused by."""
        try:
            yield
        except self.failures as e:
            said = str(e.__cause__ or e)
            if (
                isinstance(e, PermissionError)
                or said.startswith(("401", "403"))
                or type(e).__name__.endswith("CredentialsError")
            ):
                fix = (
                    "give the credentials where the client looks for them: ~/.netrc for https, AWS_ACCESS_KEY_ID for s3"
                )
                raise self._refused("the server refuses the file", said[:200], fix) from e
            if isinstance(e, FileNotFoundError) and (e.__cause__ is None or said.startswith(("404", "410"))):
                raise self._refused("there is no such file", said[:200], "check the URL") from e
            raise self.unreachable(e.__cause__ if isinstance(e.__cause__, Exception) else e) from e

    def _refused(self, message: str, found: str, fix: str, expected: str = "") -> DataError:
        return DataError(message, code=codes.MISSING_FILE, where=self.url, found=found, expected=expected, fix=fix)


def _options(fsspec: Any, url: str) -> dict[str, Any]:
    """Of the client of HTTP: proxies and ~/.netrc are used, a large file may take long, silence may not."""
    scheme = url.partition(":")[0]
    if scheme not in ("http", "https"):
        return {}
    aiohttp = import_module("aiohttp")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENT, sock_read=_SILENT)
    given = fsspec.config.conf.get(scheme, {}).get("client_kwargs", {})
    return {"client_kwargs": {"trust_env": True, "timeout": timeout, **given}}
