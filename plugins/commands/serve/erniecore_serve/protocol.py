"""HTTP/1.1 for clients that do not hurry: a connection that does not send the headers of a request in time is closed."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with a limit of time for headers; one for bodies is in ``security.py``."""

    seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, seconds: float) -> type[PatientProtocol]:
        """The protocol with this limit."""
        return type("PatientProtocol", (cls,), {"seconds": seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Bytes have come; between two requests they begin new headers."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._timer is None:
                self._wait()
        else:
            self._stop_waiting()

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
