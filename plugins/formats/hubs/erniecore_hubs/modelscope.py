"""The client of ModelScope: the list of a repository's files, and their content. Imported when a name is fetched.

`MODELSCOPE_ENDPOINT` names another host with the same interface, `MODELSCOPE_API_TOKEN` is the token. Of a revision the commit is
that of the newest file: it has the files that the list has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from erniecore_catalog import install_command
from erniecore_system.files import parse_json

from erniecore.api import CheckpointError, EnvironmentFault, UsageError
from erniecore_hubs.names import HubName
from erniecore_hubs.parts import PartFile, check_content, fetch_parts
from erniecore_hubs.places import endpoint, own_endpoint

_BRANCH = "master"
#: files in one answer to a list; of a model the hub gives no more than so many
_PAGE, _MOST = 100, 3000
#: files of a data set, and bytes of an answer, beyond which this is no list of files
_MOST_OF_DATA, _ANSWER = 100_000, 64 << 20
_TIMEOUT = 60.0


class ModelScopeClient:
    """One repository; see ``HubClient``.

    Args:
        name: of the repository. model: not a data set.
    """

    def __init__(self, name: HubName, model: bool) -> None:
        try:
            import httpx
        except ImportError as error:
            fix = install_command("httpx", of="erniecore-hubs")
            raise EnvironmentFault("names on ModelScope need httpx", where=str(name), next=fix) from error
        self._http: Any = httpx
        self._name, self._type = name, "model" if model else "dataset"
        own = endpoint(name) == own_endpoint("ms")
        self._token = os.environ.get("MODELSCOPE_API_TOKEN", "") if own else ""
        self._entries: list[dict[str, Any]] = []

    def commit(self) -> str:
        """Of the newest file of the revision."""
        entries = self._files()
        with self._errors():
            newest = max(entries, key=lambda entry: (int(entry.get("CommittedDate") or 0), str(entry.get("Revision"))))
        found = str(newest.get("Revision") or "")
        if not self._name.at(found).pinned:
            raise self._unreachable("its list of files names no commits")
        return found

    def sizes(self) -> dict[str, int]:
        """Name and bytes of every file."""
        entries = self._files()
        with self._errors():
            return {str(entry["Path"]): int(entry.get("Size") or 0) for entry in entries}

    def fetch(self, files: Iterable[str], directory: Path) -> None:
        """Files into a directory, each compared with the SHA-256 of the list."""
        announced = {str(entry["Path"]): str(entry.get("Sha256") or "") for entry in self._files()}

        sizes = self.sizes()

        def fetch(file: str, part: Path) -> None:
            self._fetch(file, part, sizes.get(file))
            if announced.get(file):
                check_content(part, announced[file], f"{self._name}/{file} at {endpoint(self._name)}")

        with self._errors():
            fetch_parts(files, directory, fetch)

    def upload(self, directory: Path, private: bool) -> str:
        """Refused with the command that uploads."""
        fix = f"`pip install modelscope`, then `modelscope upload {self._name.id} {directory}`"
        raise UsageError("models are not uploaded to ModelScope from here", where=str(self._name), fix=fix)

    def _files(self) -> list[dict[str, Any]]:
        """The entries of the files at the revision. Raises ``UsageError`` for an empty repository."""
        if not self._entries:
            with self._errors(), self._session() as session:
                found = self._pages(session) if self._type == "dataset" else self._page(session, "files", {})
            if self._type == "model" and len(found) >= _MOST:
                raise self._unreachable(f"it lists {_MOST} files at most, and this repository has more")
            self._entries = [entry for entry in found if entry.get("Type") != "tree" and entry.get("Path")]
        if not self._entries:
            raise UsageError(f"the {self._type} has no files", where=f"{self._name} at {endpoint(self._name)}")
        return self._entries

    def _pages(self, session: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for number in range(1, _MOST_OF_DATA // _PAGE + 1):
            page = self._page(session, "tree", {"PageNumber": number, "PageSize": _PAGE})
            found += page
            if len(page) < _PAGE:
                return found
        raise self._unreachable(f"its list of files has no end: {len(found)} and more")

    def _page(self, session: Any, what: str, more: dict[str, Any]) -> list[dict[str, Any]]:
        query = {"Revision": self._name.revision or _BRANCH, "Recursive": "True", **more}
        with session.stream("GET", f"{self._url()}/repo/{what}", params=query) as answer:
            answer.raise_for_status()
            text = bytearray()
            for chunk in answer.iter_bytes():
                text += chunk
                if len(text) > _ANSWER:
                    raise self._unreachable(f"its answer has more than {_ANSWER} bytes")
        body = parse_json(bytes(text))
        data = body.get("Data") if isinstance(body, dict) else None
        files = data.get("Files") if isinstance(data, dict) else data
        if not isinstance(files, list) or not all(isinstance(entry, dict) for entry in files):
            raise self._unreachable("its answer is no list of files")
        return files

    def _fetch(self, file: str, part: Path, size: int | None) -> None:
        """Go on after connections that break, as long as each brings something."""
        while True:
            before = part.stat().st_size if part.is_file() else 0
            try:
                return self._fetch_from(file, part, before, size)
            except self._http.TransportError:
                if not part.is_file() or part.stat().st_size <= before:
                    raise

    def _fetch_from(self, file: str, part: Path, here: int, size: int | None) -> None:
        query = {"Revision": self._name.revision or _BRANCH, "FilePath": file}
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={here}-"} if here else {})}
        with (
            self._session() as session,
            session.stream("GET", f"{self._url()}/repo", params=query, headers=headers) as answer,
        ):
            if here and answer.status_code == 416:  # it is whole
                return
            answer.raise_for_status()
            if answer.status_code != 206:
                part.unlink(missing_ok=True)
            with PartFile(part, size) as stream:
                for chunk in answer.iter_raw():
                    stream.write(chunk)

    def _session(self) -> Any:
        """Its token goes to the hub, and not along to where its files lie."""
        cookies = self._http.Cookies()
        if self._token:
            cookies.set("m_session_id", self._token, domain=str(urlsplit(endpoint(self._name)).hostname))
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self._http.Client(headers=headers, cookies=cookies, follow_redirects=True, timeout=_TIMEOUT)

    def _url(self) -> str:
        return f"{endpoint(self._name)}/api/v1/{self._type}s/{self._name.id}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the network as ours."""
        where = f"{self._name} at {endpoint(self._name)}"
        try:
            yield
        except self._http.HTTPStatusError as error:
            status = error.response.status_code
            if status in (401, 403):
                fix = "set MODELSCOPE_API_TOKEN to a token that may read it"
                raise UsageError("the hub wants a token for this repository", where=where, fix=fix) from error
            if status == 404:
                fix = "check name and revision; of a private repository set MODELSCOPE_API_TOKEN"
                revision = self._name.revision or _BRANCH
                raise UsageError(f"there is no such {self._type}", where=where, found=revision, fix=fix) from error
            raise self._unreachable(f"HTTP {status}") from error
        except (self._http.HTTPError, self._http.InvalidURL, ValueError, TypeError) as error:
            raise self._unreachable(" ".join(str(error).split())[:200]) from error
        except OSError as error:
            found = " ".join(str(error).split())[:200]
            raise CheckpointError("it cannot be kept", where=where, found=found, code="ERN-K003") from error

    def _unreachable(self, found: str) -> EnvironmentFault:
        fix = "repeat the command: what is here is kept; MODELSCOPE_ENDPOINT, or NAME?endpoint=https://host, is another host"
        return EnvironmentFault(
            "the hub cannot be reached", where=f"{self._name} at {endpoint(self._name)}", found=found, fix=fix
        )
