"""A web server of a test: on a free port of localhost, in a thread, silent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalServer:
    """Serves until it is closed; each request is one of ``handler``, whose class attribute ``at`` is this object."""

    def __init__(self, handler: type[SilentHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"at": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()


class SilentHandler(BaseHTTPRequestHandler):
    """Of HTTP/1.1; nothing is printed."""

    at: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""
