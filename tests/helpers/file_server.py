"""Files on localhost: a web server with ranges, and with ``?list-type=2`` the listing of S3. It can refuse, cut and forget."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from local_server import LocalServer, SilentHandler


class FileServer(LocalServer):
    """Files in memory.

    Attributes:
        files: path behind the host -> content. cuts: path -> after how many bytes each of the next responses is cut off.
        ranges, versions: whether the server knows ranges, and says ETags.
        wants: header ``Authorization`` without which it answers 401.
        requests: (method, path, Range header) of each request.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cuts: dict[str, list[int]] = {}
        self.ranges = self.versions = True
        self.wants = ""
        self.requests: list[tuple[str, str, str]] = []
        super().__init__(_Handler)

    def contents(self) -> list[str]:
        """Ranges of the requests for content, in order."""
        return [range_ for method, _, range_ in self.requests if method == "GET"]


class _Handler(SilentHandler):
    at: FileServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, query = unquote(urlsplit(self.path).path).lstrip("/"), parse_qs(urlsplit(self.path).query)
        self.at.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.at.wants and self.headers.get("Authorization") != self.at.wants:
            self._say(401)
        elif "list-type" in query:
            self._list(path.rstrip("/"), query.get("prefix", [""])[0], "delimiter" in query)
        elif path in self.at.files:
            self._file(path, self.at.files[path])
        else:
            self._say(404)

    def _file(self, path: str, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.at.ranges else None
        start = int(wanted[1]) if wanted else 0
        body = data[start : int(wanted[2]) + 1 if wanted and wanted[2] else None]
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if self.at.versions else {}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(data)}"
        cuts = self.at.cuts.get(path) if self.command == "GET" else None
        self._say(206 if wanted else 200, headers, body, cuts.pop(0) if cuts else None)

    def _list(self, bucket: str, prefix: str, flat: bool) -> None:
        keys = sorted(p[len(bucket) + 1 :] for p in self.at.files if p.startswith(f"{bucket}/{prefix}"))
        inside = {k: k[len(prefix) :].partition("/") for k in keys}
        below = sorted({prefix + head + "/" for head, slash, _ in inside.values() if flat and slash})
        items = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.at.files[f'{bucket}/{k}'])}</Size>"
            f"<ETag>{hashlib.md5(self.at.files[f'{bucket}/{k}']).hexdigest()}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for k, (_, slash, _) in inside.items()
            if not (flat and slash)
        )
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in below)
        about = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        xml = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{about}{items}{folders}</ListBucketResult>'
        self._say(200, {"Content-Type": "application/xml"}, xml.encode())

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
