"""The coordinator's socket, see ``pinned_server.py``. Everything large travels in chunks with an offset, so that a transfer goes
on where a cut link ended it.

| request | |
|---|---|
| ``POST /join``, ``POST /leave`` | terms of the run; what the site needs to know |
| ``PUT /anchor?size=``, ``PUT /rounds/R?size=`` | a chunk at ``offset``; 409 with ``received`` where it does not fit |
| ``GET /rounds/R?wait=`` | the result, 204 while the round is open |
| ``GET /files/NAME``, ``GET /rounds/R/NAME`` | a chunk of an anchor or of another site's update |
| ``GET /rosters/R?samples=``, ``GET /sums/R`` | of masked rounds: who takes part (204: not known yet), and a chunk of the sum |
| ``GET /status``, ``GET /ping`` | |
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from urllib.parse import SplitResult

import numpy as np
from erniecore_system.files import parse_json

from erniecore_wan.coordinator import Coordinator
from erniecore_wan.payload import MAX_HEADER, PayloadRefused
from erniecore_wan.pinned_server import CHUNK, PinnedHandler, PinnedServer
from erniecore_wan.rounds import Terms

_PATH = re.compile(
    r"/(join|leave|status|ping|anchor|(?:rounds|rosters|sums)/(\d{1,9})(?:/([a-z0-9_-]+))?"
    r"|files/(anchor-[\d-]+\.safetensors))"
)


class CoordinatorServer(PinnedServer):
    """Serves one coordinator.

    Args:
        address: host and port; port 0: any. key: private key, its certificate beside it. sites: certificates of the sites.
    """

    def __init__(self, address: tuple[str, int], coordinator: Coordinator, key: Path, sites: list[Path]) -> None:
        self.coordinator = coordinator
        #: (site, what) -> what has come of it
        self.uploads: dict[tuple[str, str], bytearray] = {}
        super().__init__(address, _Handler, key, sites, coordinator.store.emit, "coordinator")

    def tick(self, seconds: float = 0.2) -> None:
        """Close rounds whose time is over, for as long as the process lives; for a thread of its own."""
        self.repeat(self.coordinator.advance, seconds)


class _Handler(PinnedHandler):
    """One connection."""

    server: CoordinatorServer

    def respond(self, verb: str, url: SplitResult, body: bytes) -> None:
        found = _PATH.fullmatch(url.path)
        if found is None:
            raise PayloadRefused("unknown", f"{verb} {url.path[:80]}")
        self._dispatch(verb, found[1].partition("/")[0], found, body)

    def _dispatch(self, verb: str, what: str, found: re.Match[str], body: bytes) -> None:
        coordinator = self.server.coordinator
        match verb, what:
            case "POST", "join":
                self._join(body)
            case "POST", "leave":
                coordinator.leave(self.site)
                self.reply(200, {})
            case "GET", "status":
                self.reply(200, coordinator.status())
            case "GET", "ping":
                self.reply(200, {})
            case "PUT", "anchor":
                self._put_anchor(body)
            case "PUT", "rounds":
                self._put_update(int(found[2]), body)
            case "GET", "rounds":
                self._get_round(int(found[2]), found[3] or "")
            case "GET", "rosters":
                self._get_roster(int(found[2]))
            case "GET", "sums":
                self._get_chunk(coordinator.store.sum_path(int(found[2])))
            case "GET", "files":
                self._get_chunk(coordinator.store.directory / found[4])
            case _:
                raise PayloadRefused("unknown", f"{verb} {self.path[:80]}")

    # ---- requests
    def _join(self, body: bytes) -> None:
        terms = Terms(dict(parse_json(body)["terms"])).checked()
        self.reply(200, self.server.coordinator.join(self.site, terms))

    def _assembled(self, what: str, body: bytes, highest: int) -> bytes | None:
        """Everything, once the last chunk is there; ``None`` where a reply was sent instead."""
        size, offset = int(self.number("size", highest)), int(self.number("offset", highest))
        uploads, key = self.server.uploads, (self.site, what)
        if offset == 0 and key not in uploads:  # one transfer of a site at a time
            for other in [other for other in list(uploads) if other[0] == self.site]:
                uploads.pop(other, None)
            uploads[key] = bytearray()
        received = uploads.get(key, bytearray())
        if offset != len(received) or offset + len(body) > size:
            if offset == 0:
                uploads.pop(key, None)
            self.reply(409, {"received": len(received) if offset else 0})
            return None
        received += body
        if len(received) < size:
            self.reply(200, {"received": len(received)})
            return None
        return bytes(uploads.pop(key))

    def _put_anchor(self, body: bytes) -> None:
        coordinator = self.server.coordinator
        if coordinator.terms is None:
            raise PayloadRefused("stranger", "join first")
        sizes = coordinator.terms.sizes
        data = self._assembled("anchor", body, 4 * sum(sizes))
        if data is None:
            return
        values = np.frombuffer(data, "<f4").astype(np.float32)
        if len(values) != sum(sizes) or not np.isfinite(values).all():
            raise PayloadRefused("damaged", f"{len(values)} weights instead of {sum(sizes)}, or some are no numbers")
        coordinator.put_anchor(self.site, np.split(values, np.cumsum(sizes)[:-1]))
        self.reply(200, {"accepted": True})

    def _put_update(self, round_: int, body: bytes) -> None:
        coordinator = self.server.coordinator
        if coordinator.terms is None:
            raise PayloadRefused("stranger", "join first")
        largest = max(coordinator.terms.sizes)
        data = self._assembled(f"round {round_}", body, 8 * largest + MAX_HEADER + 4096)
        if data is not None:
            self.reply(200, {"accepted": coordinator.submit(self.site, round_, data)})

    def _get_round(self, round_: int, name: str) -> None:
        coordinator = self.server.coordinator
        if name:
            path = coordinator.store.update_path(round_, name)
            if path is None or coordinator.round <= round_ or coordinator.terms_agreed.secure:
                raise PayloadRefused("late", f"there is no update of {name} in round {round_}")
            self._get_chunk(path)
            return
        attempt = int(self.number("attempt", 1 << 20))
        result = coordinator.wait_result(round_, self.number("wait", 60), attempt)
        if result is None:
            self.send(204, b"", {})
        else:
            self.reply(200, asdict(result))

    def _get_roster(self, round_: int) -> None:
        roster = self.server.coordinator.roster(self.site, round_, self.number("samples", 1e18))
        if roster is None:
            self.send(204, b"", {})
        else:
            self.reply(200, asdict(roster))

    def _get_chunk(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(int(self.number("offset", size)))
                data = file.read(CHUNK)
        except FileNotFoundError:
            raise PayloadRefused("late", f"{path.name} is not kept any more") from None
        self.server.coordinator.count(self.site, len(data))
        self.send(200, data, {"X-Size": str(size)})
