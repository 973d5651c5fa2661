"""A site's connection to its coordinator: requests that are repeated until the link is back, and transfers that go on where
they were cut. What the link carries and how long it takes is measured on the way.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from erniecore_system.files import parse_json

from erniecore.api import ConfigError, EnvironmentFault
from erniecore_wan import keys
from erniecore_wan.arrays import Vector
from erniecore_wan.masks import Roster, roster_from
from erniecore_wan.payload import PayloadRefused
from erniecore_wan.rounds import Result, Terms, result_from
from erniecore_wan.server import CHUNK, MAX_JSON

#: seconds of the first and the longest pause between two attempts, and of a request
_PAUSE, _LONGEST, _REQUEST = 0.2, 10.0, 90.0
#: alerts with which a coordinator ends the handshake of a stranger
_STRANGER = ("unknown ca", "certificate required", "certificate unknown", "bad certificate", "decrypt error")
#: bytes from which on a transfer says something about the rate of the link
_MEASURABLE = 4096


class CoordinatorClient:
    """One site.

    Args:
        address: ``host:port`` of the coordinator. key: the site's. certificate: the coordinator's.
        timeout: seconds without any success after which a request fails.
        tell: called with the reason when the coordinator cannot be reached, once per interruption.

    Attributes:
        sent, received: bytes of updates and anchors. up, down, delay: measured, bytes per second and seconds; 0: not yet.
    """

    def __init__(
        self,
        address: str,
        key: Path,
        certificate: Path,
        timeout: float,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError.at("parallel.coordinator", f"{address!r} is not HOST:PORT")
        self._address, self._timeout, self.tell = (host, int(port)), timeout, tell
        self._tls, self._known = keys.context(key, [certificate], server=False), keys.pins([certificate])
        self._open: HTTPSConnection | None = None
        self.sent = self.received = 0
        self._most = MAX_JSON  # bytes of a file; of a run, known once it was joined
        self.up = self.down = self.delay = 0.0

    def close(self) -> None:
        """Close the connection; a later request opens another one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # ---- rounds
    def join(self, terms: Terms) -> dict[str, Any]:
        """Take part; what ``Coordinator.join`` returns. Measures the round trip."""
        found: dict[str, Any] = self._json("POST", "/join", json.dumps({"terms": terms.values}).encode())
        with self._readable("/join"):
            _check_joined(found)
        self._most = 16 * max(terms.sizes) + MAX_JSON
        started = time.perf_counter()
        self._json("GET", "/ping")
        self.delay = time.perf_counter() - started
        return found

    def leave(self) -> None:
        """This site is done."""
        self._json("POST", "/leave")

    def status(self) -> dict[str, Any]:
        """Round, sites, bytes and lag, see ``Coordinator.status``."""
        found: dict[str, Any] = self._json("GET", "/status")
        return found

    def put_anchor(self, vectors: list[Vector]) -> None:
        """The weights that the run starts from."""
        self._upload("/anchor", b"".join(vector.astype("<f4").tobytes() for vector in vectors))

    def submit(self, round_: int, data: bytes) -> str:
        """An update; ``accepted`` or ``known``. Raises ``PayloadRefused``."""
        return str(self._upload(f"/rounds/{round_}", data)["accepted"])

    def result(self, round_: int, wait: float = 20.0, attempt: int = 0) -> Result | None:
        """A round's result; ``None``: it is still open after ``wait`` seconds, or its ``attempt`` is repeated."""
        found = self._json("GET", f"/rounds/{round_}?{urlencode({'wait': wait, 'attempt': attempt})}")
        with self._readable("/rounds"):
            return None if found is None else result_from(found)

    def roster(self, round_: int, samples: float) -> Roster | None:
        """Who takes part in a masked round; ``None``: not known yet. Raises ``PayloadRefused``: ``late``, ``alone``."""
        found = self._json("GET", f"/rosters/{round_}?{urlencode({'samples': samples})}")
        with self._readable("/rosters"):
            return None if found is None else roster_from(found)

    def sum_of(self, round_: int) -> bytes:
        """The sum of the masked updates of a closed round."""
        return self._download(f"/sums/{round_}")

    def update_of(self, round_: int, name: str) -> bytes:
        """Another site's update of a closed round."""
        return self._download(f"/rounds/{round_}/{quote(name, safe='')}")

    def anchor_file(self, name: str) -> bytes:
        """A file with a fragment's anchor."""
        return self._download(f"/files/{quote(name, safe='')}")

    # ---- transfers
    def _upload(self, path: str, data: bytes) -> dict[str, Any]:
        offset, started, restarts = 0, time.perf_counter(), 0
        while True:
            query = urlencode({"size": len(data), "offset": offset})
            status, body, _ = self._request("PUT", f"{path}?{query}", data[offset : offset + CHUNK])
            with self._readable(path):
                found: dict[str, Any] = dict(parse_json(body))
                if status != 409 and "accepted" in found:
                    break
                before, offset = offset, int(found["received"])
                if not 0 <= offset <= len(data):
                    raise ValueError(f"{offset} of {len(data)} bytes received")
            if status == 409 or offset <= before:
                restarts += 1
                if restarts > 100:
                    raise EnvironmentFault("the coordinator takes this transfer at no offset", where=path)
        self.sent += len(data)
        if len(data) >= _MEASURABLE:
            self.up = len(data) / max(time.perf_counter() - started, 1e-6)
        return found

    def _download(self, path: str) -> bytes:
        received, size, started = bytearray(), 1, time.perf_counter()
        while len(received) < size:
            _, body, size = self._request("GET", f"{path}?{urlencode({'offset': len(received)})}")
            if not body and len(received) < size:
                raise EnvironmentFault(
                    "the coordinator sends nothing more", where=path, found=f"{len(received)} of {size} bytes"
                )
            received += body
            if max(len(received), size) > self._most:
                found = f"{max(len(received), size)} bytes; at most {self._most}"
                raise EnvironmentFault(
                    "the coordinator sends more than a run of these sizes has", where=path, found=found
                )
        self.received += len(received)
        if len(received) >= _MEASURABLE:
            self.down = len(received) / max(time.perf_counter() - started, 1e-6)
        return bytes(received)

    def _json(self, verb: str, path: str, body: bytes = b"") -> Any:
        status, found, _ = self._request(verb, path, body)
        with self._readable(path):
            return None if status == 204 else parse_json(found)

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        """Replies that are no replies, as an error. Raises ``EnvironmentFault``."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            where = f"{self._address[0]}:{self._address[1]}{path.partition('?')[0]}"
            found = f"{type(error).__name__}: {error}"
            raise EnvironmentFault("the coordinator replies what cannot be read", where=where, found=found) from error

    def _request(self, verb: str, path: str, body: bytes = b"") -> tuple[int, bytes, int]:
        """(status, body, value of ``X-Size``). Repeated while the coordinator cannot be reached."""
        pause, since, told = _PAUSE, time.monotonic(), False
        while True:
            try:
                status, data, size = self._once(verb, path, body)
                break
            except (OSError, HTTPException) as error:
                self.close()
                self._check_certificates(error)
                if time.monotonic() - since > self._timeout:
                    where = f"{self._address[0]}:{self._address[1]}"
                    raise EnvironmentFault(
                        f"the coordinator was not reached for {self._timeout:g} s", where=where, found=str(error)
                    ) from error
                if not told:
                    self.tell(f"{type(error).__name__}: {error}")
                    told = True
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        if status in (200, 204, 409):
            return status, data, size
        with self._readable(path):
            found = parse_json(data)
            refused = PayloadRefused(str(found["kind"]), str(found["message"]))
        raise refused

    def _once(self, verb: str, path: str, body: bytes) -> tuple[int, bytes, int]:
        if self._open is None:
            connection = HTTPSConnection(*self._address, context=self._tls, timeout=_REQUEST)
            connection.connect()
            self._open = connection
            keys.peer_of(connection.sock, self._known)
        self._open.request(verb, path, body)
        response = self._open.getresponse()
        data = response.read(CHUNK + MAX_JSON)
        if not response.isclosed():
            self.close()
            raise EnvironmentFault("the coordinator replies without an end", where=path.partition("?")[0])
        size = response.headers.get("X-Size") or "0"
        return response.status, data, int(size) if size.isdecimal() else 0

    def _check_certificates(self, error: Exception) -> None:
        """Raises where trying again cannot help: one of the two does not know the certificate of the other."""
        if isinstance(error, ssl.SSLCertVerificationError):
            where = f"{self._address[0]}:{self._address[1]}"
            raise EnvironmentFault(
                "another coordinator than the one of `parallel.certificate`", where=where, found=str(error)
            ) from error
        if isinstance(error, ssl.SSLError) and any(alert in str(error).lower() for alert in _STRANGER):
            message = f"the coordinator does not know the certificate of this site ({error})"
            raise PayloadRefused("stranger", message) from error


def _check_joined(found: Any) -> None:
    """Raises ``ValueError``, ``TypeError`` or ``LookupError`` unless it is what ``Coordinator.join`` returns."""
    if not 0 <= int(found["round"]) < 1 << 31 or not isinstance(found["first"], bool):
        raise ValueError("no round, or no word on who is first")
    for anchor in found["anchors"]:
        if not all(isinstance(anchor[key], str) for key in ("file", "digest")):
            raise ValueError("an anchor without a file")
