"""The plugin objects of the schemes. fsspec is imported when something is fetched, and only what a source names is fetched.

fsspec knows more schemes; each is a class of two lines, also in another distribution.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from erniecore.api import hookimpl
from erniecore.api.data import SchemePlugin


class RemoteFiles(SchemePlugin):
    """Files of a scheme that fsspec knows, by its name.

    Attributes:
        listed: whether a URL may be a directory or a pattern: the server can say which files there are.
        package: what brings it to fsspec, for the error where that is missing.
    """

    listed: ClassVar[bool] = True
    package: ClassVar[str] = "fsspec"

    @hookimpl
    def ernie_fetch_file(self, url: str) -> Path:
        """A copy in the user's cache, made once per version of the files."""
        from erniecore_remote.fetching import fetch

        return fetch(url, listed=self.listed, package=self.package)


class Http(RemoteFiles):
    """A file of a web server."""

    name, summary = "http", "files of web servers, kept in the cache"
    listed, package = False, "fsspec[http]"


class Https(Http):
    """A file of a web server, over an encrypted connection."""

    name = "https"


class S3(RemoteFiles):
    """Objects of S3, and of servers with its interface."""

    name, summary, package = (
        "s3",
        "objects of S3: s3://bucket/rows.jsonl, s3://bucket/folder, s3://bucket/*.jsonl",
        "s3fs",
    )


class Memory(RemoteFiles):
    """Files that this process has written into fsspec's memory, as notebooks do."""

    name, summary = "memory", "files in the memory of this process, of fsspec"


http, https, s3, memory = Http(), Https(), S3(), Memory()
