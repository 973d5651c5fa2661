"""The teacher's socket, see ``erniecore_wan.pinned_server``.

| request | |
|---|---|
| ``POST /join``, ``POST /leave`` | what the teacher is; the student is done |
| ``POST /questions`` | a question, at most one chunk; the name of its reply |
| ``GET /replies/NAME?wait=`` | a chunk of the reply at ``offset``, 204 while the model has not come to it |
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from urllib.parse import SplitResult

from erniecore_wan.payload import PayloadRefused
from erniecore_wan.pinned_server import CHUNK, PinnedHandler, PinnedServer

from erniecore_remote_distill.service import TeacherService

_PATH = re.compile(r"/(join|leave|questions|replies/([0-9a-f]{32}))")


class TeacherServer(PinnedServer):
    """Serves one teacher.

    Args:
        address: host and port; port 0: any. key: private key, its certificate beside it. sites: certificates of the students.
    """

    def __init__(self, address: tuple[str, int], service: TeacherService, key: Path, sites: list[Path]) -> None:
        self.service = service
        super().__init__(address, _Handler, key, sites, service.emit, "teacher")


class _Handler(PinnedHandler):
    """One connection."""

    server: TeacherServer

    def respond(self, verb: str, url: SplitResult, body: bytes) -> None:
        found, service = _PATH.fullmatch(url.path), self.server.service
        match verb, found and found[1].partition("/")[0]:
            case "POST", "join":
                self.reply(200, asdict(service.join(self.site)))
            case "POST", "leave":
                service.leave(self.site)
                self.reply(200, {})
            case "POST", "questions":
                self.reply(200, {"reply": service.ask(self.site, body)})
            case "GET", "replies":
                assert found is not None
                self._send_chunk(service.reply(self.site, found[2], self.number("wait", 60)))
            case _:
                raise PayloadRefused("unknown", f"{verb} {url.path[:80]}")

    def _send_chunk(self, data: bytes | None) -> None:
        if data is None:
            self.send(204, b"", {})
            return
        offset = int(self.number("offset", len(data)))
        chunk = data[offset : offset + CHUNK]
        self.server.service.fetched(self.site, len(chunk))
        self.send(200, chunk, {"X-Size": str(len(data))})
