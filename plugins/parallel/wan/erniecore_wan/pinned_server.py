"""HTTP/1.1 over TLS 1.3 where both sides have pinned certificates: what the coordinator and a teacher of another site share.

Every body has a length that is known before it is read, and a bound. Who is not known never gets as far as a request, and
whatever is refused is an event; of a flood one every few seconds.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from erniecore.api import EnvironmentFault
from erniecore_wan import keys
from erniecore_wan.payload import PayloadRefused

#: bytes of a chunk, at most; of a JSON body
CHUNK, MAX_JSON = 1 << 20, 1 << 20
#: connections from one address; seconds until a silent one is closed, and for the handshake
MAX_CONNECTIONS, SILENCE, HANDSHAKE = 16, 120.0, 10.0
#: seconds between two events of one kind about the same site
_QUIET = 5.0


class Refusals:
    """Events about what was refused; of a flood one line every few seconds, with the count."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit, self._lock = emit, threading.Lock()
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
        self._emit("refused", site=site, kind=kind, reason=reason, count=count)


class PinnedServer(ThreadingHTTPServer):
    """A server for peers whose certificates it has.

    Args:
        address: host and port; port 0: any. handler: of a connection. key: private key, its certificate beside it.
        sites: certificates of the peers. emit: takes the events. who: what it is, for errors.

    Raises:
        EnvironmentFault: it cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[PinnedHandler],
        key: Path,
        sites: list[Path],
        emit: Callable[..., None],
        who: str,
    ) -> None:
        self.refusals, self._who = Refusals(emit), who
        self.known, self.tls = keys.pins(sites), keys.context(key, sites, server=True)
        self._connections: Counter[str] = Counter()
        self._lock = threading.Lock()
        try:
            super().__init__(address, handler)
        except OSError as error:
            raise EnvironmentFault(
                f"the {who} cannot listen here", where=f"{address[0]}:{address[1]}", found=str(error)
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

    def repeat(self, job: Callable[[], None], seconds: float = 0.2) -> None:
        """Call ``job`` again and again for as long as the process lives; for a thread of its own."""
        while True:
            time.sleep(seconds)
            try:
                job()
            except Exception as error:
                self.refusals.add(self._who, "error", f"{type(error).__name__}: {error}")


class PinnedHandler(BaseHTTPRequestHandler):
    """One connection; who serves it overrides :meth:`respond`.

    Attributes:
        site: name of the peer, which TLS has proved. numbers: values of the query of the present request.
    """

    protocol_version = "HTTP/1.1"
    timeout = SILENCE
    server: PinnedServer

    def respond(self, verb: str, url: SplitResult, body: bytes) -> None:
        """Reply to a request. Raises ``PayloadRefused`` (a reply with its kind), ``ValueError``, ``LookupError`` or ``TypeError``
        (damaged: the connection ends)."""
        raise NotImplementedError

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
        self.numbers = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            self.respond(verb, url, self._body())
        except PayloadRefused as error:
            self.server.refusals.add(self.site, error.kind, str(error))
            self.reply(413 if error.kind == "too-large" else 403, {"kind": error.kind, "message": str(error)})
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            self.close_connection = True  # nobody knows where the next request begins
            self.server.refusals.add(self.site, "damaged", f"{verb} {url.path[:80]}: {type(error).__name__}: {error}")
            self.reply(400, {"kind": "damaged", "message": str(error)})

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") or not 0 <= length <= max(CHUNK, MAX_JSON):
            self.close_connection = True
            raise PayloadRefused("too-large", f"a body of {length} bytes; at most {CHUNK} at a time")
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("cut")
        return body

    def number(self, name: str, highest: float) -> float:
        """A value of the query, 0 where there is none. Raises ``PayloadRefused`` beyond ``highest``."""
        value = float(self.numbers.get(name, "0"))
        if not 0 <= value <= highest:
            raise PayloadRefused("too-large", f"{name}={value:g}; at most {highest:g}")
        return value

    def reply(self, status: int, values: Any) -> None:
        """A reply in JSON."""
        self.send(status, json.dumps(values).encode(), {})

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        """A reply of these bytes."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
