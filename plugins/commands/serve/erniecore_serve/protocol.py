"""HTTP/1.1 for clients that do not hurry, and for many: a connection that does not send the headers of a request in time is
closed, one beyond the limit is told so. What is no HTTP is refused with an error object, as everything else is."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with limits of time for headers and of connections; one of time for bodies is in ``security.py``.
    uvicorn's own limit of connections answers with plain text."""

    seconds: ClassVar[float] = 30.0
    most: ClassVar[int] = 512
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float, connections: int) -> type[PatientProtocol]:
        """The protocol with these limits."""
        return type("PatientProtocol", (cls,), {"seconds": seconds, "most": connections})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self.app = _too_many
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Bytes have come; between two requests they begin new headers."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._timer is None:
                self._wait()
        else:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, and headers that are too long: h11 does not say which."""
        body, headers = _refusal(msg, "invalid_request_error", "invalid_http")
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def _refusal(message: str, kind: str, code: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body of an error, and the headers of an answer after which the connection is closed."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    size = str(len(body)).encode()
    return body, [(b"content-type", b"application/json"), (b"content-length", size), (b"connection", b"close")]


async def _too_many(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application for connections beyond the limit."""
    message = "too many connections; try again in a moment"
    body, headers = _refusal(message, "service_unavailable_error", "too_many_connections")
    await send({"type": "http.response.start", "status": 503, "headers": [*headers, (b"retry-after", b"1")]})
    await send({"type": "http.response.body", "body": body})
