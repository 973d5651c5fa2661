"""A hub on localhost with the interfaces of the Hugging Face hub and of ModelScope, as far as models and data sets are fetched,
and on the first uploaded: tokens, revisions, ranges, connections that are cut, and commits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any
from urllib.parse import parse_qs

from local_server import LocalServer, SilentHandler

_REPO = r"(?P<id>[\w.-]+/[\w.-]+)"


class Hub(LocalServer):
    """Repositories in memory.

    Attributes:
        repos: (``models`` or ``datasets``, id) -> commit -> file -> bytes. refs: the same -> revision -> commit.
        private: id -> the token that it wants. cuts: file -> after how many bytes the next response is cut off.
        requests: (method, path, Range header) of each request.
    """

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], dict[str, dict[str, bytes]]] = {}
        self.refs: dict[tuple[str, str], dict[str, str]] = {}
        self.private: dict[str, str] = {}
        self.cuts: dict[str, int] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.blobs: dict[str, bytes] = {}
        super().__init__(_Handler)

    def add(self, kind: str, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        """A commit with these files; ``revision`` stands for it from now on."""
        number = len(self.repos.setdefault((kind, name), {}))
        commit = hashlib.sha1(f"{kind} {name} {number}".encode()).hexdigest()
        self.repos[kind, name][commit] = dict(files)
        self.refs.setdefault((kind, name), {})[revision] = commit
        return commit

    def fetched(self) -> list[str]:
        """Names of the files whose content was asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def entries(self, kind: str, name: str, commit: str) -> list[dict[str, Any]]:
        """The files of a commit as ModelScope lists them, each with the commit that changed it last."""
        commits = self.repos[kind, name]
        order, wanted, listed = [*commits], commits[commit], []
        for path, data in wanted.items():
            date = order.index(commit)
            while date and commits[order[date - 1]].get(path) == data:
                date -= 1
            since = order[date]
            entry = {"Path": path, "Name": path.rpartition("/")[2], "Type": "blob", "Size": len(data)}
            listed.append({**entry, "Sha256": _etag(data), "Revision": since, "CommittedDate": date})
        return [*listed, *({"Path": d, "Type": "tree"} for d in {p.rpartition("/")[0] for p in wanted} if d)]


class _Handler(SilentHandler):
    at: Hub

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def _read(self) -> None:
        path = self.path.partition("?")[0]
        self.at.requests.append((self.command, path, self.headers.get("Range", "")))
        query = {key: values[0] for key, values in parse_qs(self.path.partition("?")[2]).items()}
        if found := re.fullmatch(rf"/api/v1/(?P<kind>models|datasets)/{_REPO}/repo(?P<list>/files|/tree)?", path):
            self._modelscope(found, query)
        elif found := re.fullmatch(rf"/api/(?P<kind>models|datasets)/{_REPO}(/revision/(?P<revision>[^/]+))?", path):
            self._info(found)
        elif found := re.fullmatch(rf"(?P<data>/datasets)?/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", path):
            self._file(found)
        else:
            self._say(404)

    def _modelscope(self, found: re.Match[str], query: dict[str, str]) -> None:
        kind, name = found["kind"], found["id"]
        branch = "main" if query["Revision"] == "master" else query["Revision"]
        if not (commit := self._commit(kind, {"id": name, "revision": branch})):
            return
        if not found["list"]:
            file = query["FilePath"]
            self.at.requests[-1] = (self.command, f"{name}/resolve/{file}", self.headers.get("Range", ""))
            self._content(kind, name, commit, file)
            return
        entries = self.at.entries(kind, name, commit)
        if found["list"] == "/tree":
            size = int(query["PageSize"])
            entries = entries[(int(query["PageNumber"]) - 1) * size :][:size]
        self._json({"Code": 200, "Data": {"Files": entries}, "Success": True})

    def _commit(self, kind: str, found: Any) -> str:
        """The commit, or empty once the refusal was sent."""
        name, revision = found["id"], found["revision"] or "main"
        token = self.at.private.get(name)
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            self._say(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted"})
        elif (kind, name) not in self.at.repos:
            self._say(404, {"X-Error-Code": "RepoNotFound"})
        elif (commit := self.at.refs[kind, name].get(revision, revision)) not in self.at.repos[kind, name]:
            self._say(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return commit
        return ""

    def _info(self, found: re.Match[str]) -> None:
        if commit := self._commit(found["kind"], found):
            files = self.at.repos[found["kind"], found["id"]][commit]
            siblings = [{"rfilename": name, "size": len(data), "blobId": _etag(data)} for name, data in files.items()]
            self._json({"id": found["id"], "sha": commit, "siblings": siblings, "private": False})

    def _file(self, found: re.Match[str]) -> None:
        kind = "datasets" if found["data"] else "models"
        if not (commit := self._commit(kind, found)):
            return
        self._content(kind, found["id"], commit, found["file"])

    def _content(self, kind: str, name: str, commit: str, file: str) -> None:
        data = self.at.repos[kind, name][commit].get(file)
        if data is None:
            self._say(404, {"X-Error-Code": "EntryNotFound"})
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        body = data[start : int(wanted[2]) + 1 if wanted and wanted[2] else None]
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(data)}"
        cut = self.at.cuts.pop(file, None) if self.command == "GET" else None
        self._say(206 if wanted else 200, headers, body, cut)

    def do_PUT(self) -> None:
        digest = self.path.rpartition("/")[2]
        self.at.blobs[digest] = self._body()
        self._say(200)

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self._body()
        self.at.requests.append((self.command, path, ""))
        if not self.headers.get("Authorization"):
            self._say(401)
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request.get('organization') or 'me'}/{request['name']}"
            self.at.refs.setdefault(("models", name), {})
            self.at.repos.setdefault(("models", name), {})
            self._json({"url": f"{self.at.url}/{name}", "id": name, "name": name})
        elif path.endswith("/info/lfs/objects/batch"):
            self._json({"transfer": "basic", "objects": [self._upload(o) for o in json.loads(body)["objects"]]})
        elif found := re.fullmatch(rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)", path):
            modes = [
                {"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            self._json({"files": modes})
        elif found := re.fullmatch(rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)", path):
            self._make_commit(found, body)
        else:
            self._say(404)

    def _upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        action = {"href": f"{self.at.url}/blobs/{wanted['oid']}", "header": {}}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": action}}

    def _make_commit(self, found: re.Match[str], body: bytes) -> None:
        files: dict[str, bytes] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.at.blobs[value["oid"]]
        commit = self.at.add("models", found["id"], files, found["revision"])
        url = f"{self.at.url}/{found['id']}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, value: Any) -> None:
        self._say(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _say(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"
