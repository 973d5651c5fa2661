"""An ASGI application on a port: the socket, uvicorn in a thread of its own, and signals that ask to stop. For server plugins
and the web page; the main thread of the process stays free for what it serves.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from erniecore.api import EnvironmentFault
from erniecore_serve.protocol import PatientProtocol
from erniecore_serve.stopping import on_stop

#: Seconds for the last bytes of answers.
_TAIL_SECONDS = 5


@contextmanager
def listening(app: Any, host: str, port: int, *, header_seconds: float, connections: int) -> Iterator[str]:
    """Answer with ``app`` as long as the block runs; the address, as ``http://host:port``.

    Args:
        app: an ASGI application.
        port: 0: any free one.
        header_seconds: that a client has for the headers of a request.
        connections: at a time; more are refused (503, ``too_many_connections``).

    Raises:
        EnvironmentFault: the address cannot be listened on.
    """
    listener = bound_socket(host, port)
    config = uvicorn.Config(
        app,
        http=PatientProtocol.within(header_seconds, connections),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_TAIL_SECONDS,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="erniecore-http", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_TAIL_SECONDS + 1)
        listener.close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket that no child inherits. Raises ``EnvironmentFault`` for an address that cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise EnvironmentFault(
            "cannot listen on this address", where="host, port", found=f"{host}:{port}: {error.strerror or error}",
            fix="choose another port, or port=0 for any free one",
        ) from error  # fmt: skip
    found.set_inheritable(False)
    return found


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event for the first signal that asks to stop; the second one ends the process."""
    asked = threading.Event()

    def stop(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    with on_stop(stop):
        yield asked
