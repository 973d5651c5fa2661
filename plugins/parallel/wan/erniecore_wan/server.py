"""The coordinator's socket: HTTP/1.1 over TLS 1.3, where both sides have pinned certificates.

Everything large travels in chunks with an offset, so that a transfer goes on where a cut link ended it. Every body has a
length that is known before it is read, and a bound. Who is not known never gets as far as a request.

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

import json
import re
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from erniecore_system.files import parse_json

from erniecore.api import EnvironmentFault
from erniecore_wan import keys
from erniecore_wan.coordinator import Coordinator
from erniecore_wan.payload import MAX_HEADER, PayloadRefused
from erniecore_wan.rounds import Terms

#: bytes of a chunk, at most; of a JSON body
CHUNK, MAX_JSON = 1 << 20, 1 << 20
#: connections from one address; seconds until a silent one is closed, and for the handshake
MAX_CONNECTIONS, SILENCE, HANDSHAKE = 16, 120.0, 10.0
#: seconds between two events of one kind about the same site
_QUIET = 5.0
_PATH = re.compile(
    r"/(join|leave|status|ping|anchor|(?:rounds|rosters|sums)/(\d{1,9})(?:/([a-z0-9_-]+))?"
    r"|files/(anchor-[\d-]+\.safetensors))"
)


class Refusals:
    """Events about what was refused; of a flood one line every few seconds, with the count."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self._lock = coordinator, threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._told: dict[tuple[str, str], float] = {}

    def add(self, site: str, kind: str, reason: str) -> None:
        """One more refusal of ``site`` (or address)."""
        now, key = time.monotonic(), (site, kind)
        with self._lock:
            self._counts[key] += 1
            if now - self._told.get(key, -_QUIET) < _QUIET:
                return
            self._told[key] = now
            count = self._counts.pop(key)
            if len(self._told) > 1000:
                self._told.clear()
        self._coordinator.store.emit("refused", site=site, kind=kind, reason=reason, count=count)


class CoordinatorServer(ThreadingHTTPServer):
    """Serves one coordinator.

    Args:
        address: host and port; port 0: any. key: private key, its certificate beside it. sites: certificates of the sites.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], coordinator: Coordinator, key: Path, sites: list[Path]) -> None:
        self.coordinator, self.refusals = coordinator, Refusals(coordinator)
        self.known, self.tls = keys.pins(sites), keys.context(key, sites, server=True)
        self._connections: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: (site, what) -> what has come of it
        self.uploads: dict[tuple[str, str], bytearray] = {}
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise EnvironmentFault(
                "the coordinator cannot listen here", where=f"{address[0]}:{address[1]}", found=str(error)
            ) from error

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuses more than a few connections of one address."""
        host = str(client_address[0])
        with self._lock:
            if self._connections[host] < MAX_CONNECTIONS * max(len(self.known), 1):
                self._connections[host] += 1
                return True
        self.refusals.add(host, "flood", f"more than {MAX_CONNECTIONS} connections for each site at once")
        return False

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections[str(client_address[0])] -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke, or a stranger; never more than an event."""
        error = sys.exc_info()[1]
        if isinstance(error, ssl.SSLEOFError):  # cut, as any connection may be
            return
        if isinstance(error, ssl.SSLCertVerificationError | EnvironmentFault) or "PEER_DID_NOT_RETURN" in str(error):
            self.refusals.add(str(client_address[0]), "stranger", f"no pinned certificate: {error}")
        elif isinstance(error, ssl.SSLError):
            self.refusals.add(
                str(client_address[0]), "damaged", f"the connection is no TLS, or bytes have changed: {error}"
            )
        elif not isinstance(error, OSError):
            self.refusals.add(str(client_address[0]), "error", f"{type(error).__name__}: {error}")

    def tick(self, seconds: float = 0.2) -> None:
        """Close rounds whose time is over, for as long as the process lives; for a thread of its own."""
        while True:
            time.sleep(seconds)
            try:
                self.coordinator.advance()
            except Exception as error:
                self.refusals.add("coordinator", "error", f"{type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = SILENCE
    server: CoordinatorServer

    def setup(self) -> None:
        """The handshake, in the thread of this connection: a slow one delays nobody."""
        self.request.settimeout(HANDSHAKE)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        try:
            self.site = keys.peer_of(self.request, self.server.known)
        except EnvironmentFault:
            self.request.close()
            raise
        super().setup()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.request.close()  # the server closes the socket below TLS, which has none of its own any more

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: decisions are events."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, verb: str) -> None:
        url = urlsplit(self.path)
        found = _PATH.fullmatch(url.path)
        self.numbers = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            body = self._body()
            if found is None:
                raise PayloadRefused("unknown", f"{verb} {url.path[:80]}")
            self._dispatch(verb, found[1].partition("/")[0], found, body)
        except PayloadRefused as error:
            self.server.refusals.add(self.site, error.kind, str(error))
            self._reply(413 if error.kind == "too-large" else 403, {"kind": error.kind, "message": str(error)})
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            self.close_connection = True  # nobody knows where the next request begins
            self.server.refusals.add(self.site, "damaged", f"{verb} {url.path[:80]}: {type(error).__name__}: {error}")
            self._reply(400, {"kind": "damaged", "message": str(error)})

    def _dispatch(self, verb: str, what: str, found: re.Match[str], body: bytes) -> None:
        coordinator = self.server.coordinator
        match verb, what:
            case "POST", "join":
                self._join(body)
            case "POST", "leave":
                coordinator.leave(self.site)
                self._reply(200, {})
            case "GET", "status":
                self._reply(200, coordinator.status())
            case "GET", "ping":
                self._reply(200, {})
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

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") or not 0 <= length <= max(CHUNK, MAX_JSON):
            self.close_connection = True
            raise PayloadRefused("too-large", f"a body of {length} bytes; at most {CHUNK} at a time")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("cut")
        return body

    def _number(self, name: str, highest: float) -> float:
        value = float(self.numbers.get(name, "0"))
        if not 0 <= value <= highest:
            raise PayloadRefused("too-large", f"{name}={value:g}; at most {highest:g}")
        return value

    def _reply(self, status: int, values: Any) -> None:
        self._send(status, json.dumps(values).encode(), {})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    # ---- requests
    def _join(self, body: bytes) -> None:
        terms = Terms(dict(parse_json(body)["terms"])).checked()
        self._reply(200, self.server.coordinator.join(self.site, terms))

    def _assembled(self, what: str, body: bytes, highest: int) -> bytes | None:
        """Everything, once the last chunk is there; ``None`` where a reply was sent instead."""
        size, offset = int(self._number("size", highest)), int(self._number("offset", highest))
        uploads, key = self.server.uploads, (self.site, what)
        if offset == 0 and key not in uploads:  # one transfer of a site at a time
            for other in [other for other in list(uploads) if other[0] == self.site]:
                uploads.pop(other, None)
            uploads[key] = bytearray()
        received = uploads.get(key, bytearray())
        if offset != len(received) or offset + len(body) > size:
            if offset == 0:
                uploads.pop(key, None)
            self._reply(409, {"received": len(received) if offset else 0})
            return None
        received += body
        if len(received) < size:
            self._reply(200, {"received": len(received)})
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
        self._reply(200, {"accepted": True})

    def _put_update(self, round_: int, body: bytes) -> None:
        coordinator = self.server.coordinator
        if coordinator.terms is None:
            raise PayloadRefused("stranger", "join first")
        largest = max(coordinator.terms.sizes)
        data = self._assembled(f"round {round_}", body, 8 * largest + MAX_HEADER + 4096)
        if data is not None:
            self._reply(200, {"accepted": coordinator.submit(self.site, round_, data)})

    def _get_round(self, round_: int, name: str) -> None:
        coordinator = self.server.coordinator
        if name:
            path = coordinator.store.update_path(round_, name)
            if path is None or coordinator.round <= round_ or coordinator.terms_agreed.secure:
                raise PayloadRefused("late", f"there is no update of {name} in round {round_}")
            self._get_chunk(path)
            return
        attempt = int(self._number("attempt", 1 << 20))
        result = coordinator.wait_result(round_, self._number("wait", 60), attempt)
        if result is None:
            self._send(204, b"", {})
        else:
            self._reply(200, asdict(result))

    def _get_roster(self, round_: int) -> None:
        roster = self.server.coordinator.roster(self.site, round_, self._number("samples", 1e18))
        if roster is None:
            self._send(204, b"", {})
        else:
            self._reply(200, asdict(roster))

    def _get_chunk(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(int(self._number("offset", size)))
                data = file.read(CHUNK)
        except FileNotFoundError:
            raise PayloadRefused("late", f"{path.name} is not kept any more") from None
        self.server.coordinator.count(self.site, len(data))
        self._send(200, data, {"X-Size": str(size)})
