"""What was fetched from a hub, in the user's cache: one directory per commit, without links.

$XDG_CACHE_HOME/erniecore/hubs/HUB/HOST/models|datasets/OWNER/NAME/
    refs/REVISION     the commit that this revision was at when it was last looked up
    COMMIT/           the files; what was not fetched to its end continues where it stopped
    COMMIT.ID.json    name and size of each file of one selection, written once all are there
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from erniecore_system.durable import replace_file
from erniecore_system.files import cache_home
from erniecore_system.locks import locked

from erniecore.api import UsageError
from erniecore.api.files import read_object
from erniecore_hubs.names import HubName

#: the name of the newest revision in ``refs``
_NEWEST = "HEAD"


@dataclass(frozen=True)
class Store:
    """The part of the cache for one hub.

    Attributes:
        endpoint: URL of the hub: files of two hosts never mix.
    """

    hub: str
    endpoint: str

    def _home(self, name: HubName, model: bool) -> Path:
        url = urlsplit(self.endpoint)
        host = quote(url.netloc + url.path.rstrip("/"), safe="")
        return cache_home() / "erniecore" / "hubs" / self.hub / host / ("models" if model else "datasets") / name.id

    def asking(self, name: HubName, model: bool) -> AbstractContextManager[object]:
        """For the one process of this machine that asks the hub for a repository; others wait."""
        home = self._home(name, model)
        home.parent.mkdir(parents=True, exist_ok=True)
        return locked(home, "asking")

    def directory(self, name: HubName, model: bool) -> Path:
        """Of a pinned name; may not exist yet."""
        return self._home(name, model) / name.revision

    def commit(self, name: HubName, model: bool) -> str:
        """The commit at which a revision was last looked up; empty: never."""
        file = self._ref(name, model)
        return file.read_text(encoding="ascii").strip() if file.is_file() else ""

    def remember(self, name: HubName, model: bool, commit: str) -> None:
        """``commit`` is what the revision of ``name`` stands for now."""
        file = self._ref(name, model)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, f"{commit}\n".encode("ascii"))

    def _ref(self, name: HubName, model: bool) -> Path:
        return self._home(name, model) / "refs" / (name.revision or _NEWEST)

    def files(self, name: HubName, model: bool, part: str = "") -> list[str]:
        """The files of a selection, if all of them are here with their sizes; else empty. ``part``: of a model."""
        record, directory = self._record(name, model, part), self.directory(name, model)
        if not record.is_file():
            return []
        sizes = read_object(record, UsageError, fix=f"remove {record}").items()
        whole = all((directory / file).is_file() and (directory / file).stat().st_size == size for file, size in sizes)
        return [file for file, _ in sizes] if whole else []

    def finish(self, name: HubName, model: bool, sizes: Mapping[str, int], part: str = "") -> None:
        """All files of a selection are here."""
        replace_file(self._record(name, model, part), json.dumps(dict(sizes), indent=1).encode())

    def _record(self, name: HubName, model: bool, part: str) -> Path:
        selection = hashlib.sha256(f"{name.split}/{name.file}{part}".encode()).hexdigest()[:16]
        return self._home(name, model) / f"{name.revision}.{selection}.json"
