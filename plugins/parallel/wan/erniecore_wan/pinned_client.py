"""A client of a pinned server (``pinned_server.py``): requests that are repeated until the link is back, and transfers that go on
where they were cut. What the link carries and how long it takes is measured on the way.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from erniecore_system.files import parse_json

from erniecore.api import ConfigError, EnvironmentFault
from erniecore_wan import keys
from erniecore_wan.payload import PayloadRefused
from erniecore_wan.pinned_server import CHUNK, MAX_JSON

#: seconds of the first and the longest pause between two attempts, and of a request
_PAUSE, _LONGEST, _REQUEST = 0.2, 10.0, 90.0
#: alerts with which a server ends the handshake of a stranger
_STRANGER = ("unknown ca", "certificate required", "certificate unknown", "bad certificate", "decrypt error")
#: bytes from which on a transfer says something about the rate of the link
_MEASURABLE = 4096


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, in words, and the settings that describe it."""

    who: str = "coordinator"
    address: str = "parallel.coordinator"
    key: str = "parallel.key"
    certificate: str = "parallel.certificate"


class DeadlinePassed(TimeoutError):
    """The other side was not heard of before :attr:`PinnedClient.deadline`."""


class PinnedClient:
    """The connection to one server.

    Args:
        address: ``host:port``. key: of this side. certificate: of the other side.
        timeout: seconds without any success after which a request fails.
        tell: called with the reason when the other side cannot be reached, once per interruption.

    Attributes:
        sent, received: bytes of transfers. up, down, delay: measured, bytes per second and seconds; 0: not yet.
        most: bytes that a transfer may have that is received.
        deadline: clock (monotonic) at which requests fail with :class:`DeadlinePassed`; ``None``: only by ``timeout``.
    """

    def __init__(
        self,
        address: str,
        key: Path,
        certificate: Path,
        timeout: float,
        tell: Callable[[str], None] = lambda text: None,
        peer: Peer = Peer(),
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError.at(peer.address, f"{address!r} is not HOST:PORT")
        self._address, self._timeout, self.tell, self._peer = (host, int(port)), timeout, tell, peer
        self._tls = keys.context(key, [certificate], server=False, setting=peer.key)
        self._known = keys.pins([certificate])
        self._open: HTTPSConnection | None = None
        self.sent = self.received = 0
        self.most = MAX_JSON
        self.up = self.down = self.delay = 0.0
        self.deadline: float | None = None

    def close(self) -> None:
        """Close the connection; a later request opens another one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # ---- transfers
    def upload(self, path: str, data: bytes) -> dict[str, Any]:
        """Send ``data`` in chunks, from where the server has it; its last reply. Raises what :meth:`json` does."""
        offset, started, restarts = 0, time.perf_counter(), 0
        while True:
            query = urlencode({"size": len(data), "offset": offset})
            status, body, _ = self._request("PUT", f"{path}?{query}", data[offset : offset + CHUNK])
            with self.readable(path):
                found: dict[str, Any] = dict(parse_json(body))
                if status != 409 and "accepted" in found:
                    break
                before, offset = offset, int(found["received"])
                if not 0 <= offset <= len(data):
                    raise ValueError(f"{offset} of {len(data)} bytes received")
            if status == 409 or offset <= before:
                restarts += 1
                if restarts > 100:
                    raise EnvironmentFault(f"the {self._peer.who} takes this transfer at no offset", where=path)
        self.sent += len(data)
        if len(data) >= _MEASURABLE:
            self.up = len(data) / max(time.perf_counter() - started, 1e-6)
        return found

    def download(self, path: str, **query: float) -> bytes:
        """Fetch in chunks; empty where the server has nothing yet. Raises what :meth:`json` does."""
        received, size, started = bytearray(), 1, time.perf_counter()
        while len(received) < size:
            _, body, size = self._request("GET", f"{path}?{urlencode({'offset': len(received), **query})}")
            if not body and len(received) < size:
                raise EnvironmentFault(
                    f"the {self._peer.who} sends nothing more", where=path, found=f"{len(received)} of {size} bytes"
                )
            received += body
            if max(len(received), size) > self.most:
                found = f"{max(len(received), size)} bytes; at most {self.most}"
                raise EnvironmentFault(
                    f"the {self._peer.who} sends more than a run of these sizes has", where=path, found=found
                )
        self.received += len(received)
        if len(received) >= _MEASURABLE:
            self.down = len(received) / max(time.perf_counter() - started, 1e-6)
        return bytes(received)

    def json(self, verb: str, path: str, body: bytes = b"") -> Any:
        """The reply to one request; ``None`` where there is nothing yet.

        Raises:
            PayloadRefused: with the kind that the server says. EnvironmentFault: no success within ``timeout`` seconds, or a
                reply that is none. DeadlinePassed: see ``deadline``.
        """
        status, found, _ = self._request(verb, path, body)
        with self.readable(path):
            return None if status == 204 else parse_json(found)

    @contextmanager
    def readable(self, path: str) -> Iterator[None]:
        """Replies that are no replies, as an error. Raises ``EnvironmentFault``."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            where = f"{self._address[0]}:{self._address[1]}{path.partition('?')[0]}"
            found = f"{type(error).__name__}: {error}"
            raise EnvironmentFault(
                f"the {self._peer.who} replies what cannot be read", where=where, found=found
            ) from error

    def _request(self, verb: str, path: str, body: bytes = b"") -> tuple[int, bytes, int]:
        """(status, body, value of ``X-Size``). Repeated while the other side cannot be reached."""
        pause, since, told = _PAUSE, time.monotonic(), False
        while True:
            try:
                status, data, size = self._once(verb, path, body)
                break
            except (OSError, HTTPException) as error:
                self.close()
                self._check_certificates(error)
                if not told:
                    self.tell(f"{type(error).__name__}: {error}")
                    told = True
                self.check_deadline()
                if time.monotonic() - since > self._timeout:
                    where = f"{self._address[0]}:{self._address[1]}"
                    raise EnvironmentFault(
                        f"the {self._peer.who} was not reached for {self._timeout:g} s", where=where, found=str(error)
                    ) from error
                time.sleep(min(pause, self.left(pause)))
                pause = min(2 * pause, _LONGEST)
        if status in (200, 204, 409):
            return status, data, size
        with self.readable(path):
            found = parse_json(data)
            refused = PayloadRefused(str(found["kind"]), str(found["message"]))
        raise refused

    def left(self, most: float) -> float:
        """Seconds until the deadline, at most ``most``."""
        return most if self.deadline is None else max(min(most, self.deadline - time.monotonic()), 0.01)

    def check_deadline(self) -> None:
        """Raises ``DeadlinePassed`` behind ``deadline``."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlinePassed(f"the {self._peer.who} was not heard of in time")

    def _once(self, verb: str, path: str, body: bytes) -> tuple[int, bytes, int]:
        if self._open is None or self._open.sock is None:
            connection = HTTPSConnection(*self._address, context=self._tls, timeout=self.left(_REQUEST))
            connection.connect()
            self._open = connection
            keys.peer_of(connection.sock, self._known)
        self._open.sock.settimeout(self.left(_REQUEST))
        self._open.request(verb, path, body)
        response = self._open.getresponse()
        data = response.read(CHUNK + MAX_JSON)
        if not response.isclosed():
            self.close()
            raise EnvironmentFault(f"the {self._peer.who} replies without an end", where=path.partition("?")[0])
        size = response.headers.get("X-Size") or "0"
        return response.status, data, int(size) if size.isdecimal() else 0

    def _check_certificates(self, error: Exception) -> None:
        """Raises where trying again cannot help: one of the two does not know the certificate of the other."""
        if isinstance(error, ssl.SSLCertVerificationError):
            where = f"{self._address[0]}:{self._address[1]}"
            raise EnvironmentFault(
                f"another {self._peer.who} than the one of `{self._peer.certificate}`", where=where, found=str(error)
            ) from error
        if isinstance(error, ssl.SSLError) and any(alert in str(error).lower() for alert in _STRANGER):
            message = f"the {self._peer.who} does not know the certificate of this site ({error})"
            raise PayloadRefused("stranger", message) from error
