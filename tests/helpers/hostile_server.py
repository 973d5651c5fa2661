"""A server of somebody else that answers what a test says: a process of its own on localhost, apart from the attempt.

An answer is a function ``(request) -> pieces of bytes``, everything of HTTP included; a server sends them until nobody listens.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

#: bytes of an endless answer that are sent at once, and after how many of them a server gives up: no attempt may read so far
_PIECE, _MOST = bytes(1 << 20), 64 << 10


class Request(NamedTuple):
    """Of HTTP: verb, path with query, the first and last byte of its range (0 and -1: it has none)."""

    verb: str
    path: str
    start: int = 0
    end: int = -1


Answer = Callable[[Request], Iterable[bytes]]


def head(status: str, *lines: str) -> bytes:
    """The head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode("latin-1")


def whole(body: bytes, *lines: str, status: str = "200 OK") -> Iterator[bytes]:
    """An answer as it should be."""
    yield head(status, f"Content-Length: {len(body)}", "Connection: close", *lines) + body


def endless(piece: bytes = _PIECE) -> Iterator[bytes]:
    """More than a machine has."""
    for _ in range(_MOST):
        yield piece


def as_json(value: object) -> Iterator[bytes]:
    """An answer that is JSON."""
    return whole(value if isinstance(value, bytes) else json.dumps(value).encode(), "Content-Type: application/json")


class HostileServer:
    """Answers until it is closed. ``port``: of localhost."""

    def __init__(self, answer: Answer) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self._pid = os.fork()
        if not self._pid:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            with suppress(BaseException):
                _serve(listener, answer)
            os._exit(0)
        listener.close()

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _serve(listener: socket.socket, answer: Answer) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_talk, args=(connection, answer), daemon=True).start()


def _talk(connection: socket.socket, answer: Answer) -> None:
    """One request; the connection is closed behind it."""
    with connection, suppress(OSError, ValueError, IndexError):
        text = bytearray()
        while b"\r\n\r\n" not in text:
            if not (data := connection.recv(1 << 16)):
                return
            text += data
        verb, path, _ = text.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        found = re.search(rb"(?i)\r\nrange: *bytes=(\d+)-(\d*)", text)
        start, end = (int(found[1]), int(found[2] or -1)) if found else (0, -1)
        for piece in answer(Request(verb, path, start, end)):
            if verb == "HEAD":
                piece, behind, _ = piece.partition(b"\r\n\r\n")
                connection.sendall(piece + behind)
                return
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        connection.recv(1 << 16)  # until the other side has read it all
