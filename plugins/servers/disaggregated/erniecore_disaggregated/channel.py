"""Messages between the processes of a server: a JSON object, bytes behind it, a checksum over both; over any stream socket.

A frame is ``MAGIC, length of the JSON, length of the bytes, CRC-32 of both`` and then the two. A file descriptor may travel
with a frame over a Unix socket. Sending never waits: a thread writes, and a channel whose other side does not read is
closed when too much has piled up. A frame that has begun has to be there within a limit of time.
"""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass

from erniecore.api import Json

MAGIC = b"ERN1"
_FRAME = struct.Struct("!4sIQI")
#: bytes of a JSON object, and of what follows it
MOST_JSON, MOST_PAYLOAD = 32 << 20, 1 << 30
#: bytes that may wait for a side that does not read
MOST_WAITING = 1 << 30


class ChannelClosed(ConnectionError):
    """The other side is gone, does not read, or sent what is no message; the text says which."""


@dataclass(frozen=True, slots=True)
class Message:
    """What was received.

    Attributes:
        file: descriptor that came with it, which the receiver closes; -1: none.
    """

    head: Json
    payload: bytes = b""
    file: int = -1

    def close(self) -> None:
        """Close the descriptor, if one came with it."""
        _close(self.file)


class Channel:
    """One side of a connection. Any thread may send, one receives.

    Args:
        seconds: within which a frame that has begun must be read or written.
    """

    def __init__(self, connection: socket.socket, *, seconds: float) -> None:
        self._socket, self._seconds = connection, seconds
        connection.settimeout(None)
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, limit)
        self._files = connection.family == socket.AF_UNIX
        self._waiting: queue.SimpleQueue[tuple[bytes, bytes, int] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self.closed = False
        self._users = 2  # the thread that writes and the one that receives: the last one closes the socket
        threading.Thread(target=self._write, name="erniecore-channel", daemon=True).start()

    def send(self, head: Json, payload: bytes = b"", file: int = -1) -> None:
        """Queue a message; ``file`` is closed when it is sent. One to a side that is gone is dropped: the receiving thread
        hears of that."""
        text = json.dumps(head, separators=(",", ":")).encode()
        checksum = zlib.crc32(payload, zlib.crc32(text))
        frame = _FRAME.pack(MAGIC, len(text), len(payload), checksum) + text
        with self._lock:
            if not self.closed:
                self._waiting_bytes += len(frame) + len(payload)
                if self._waiting_bytes <= MOST_WAITING:
                    self._waiting.put((frame, payload, file))
                    return
        _close(file)
        self.close()

    def receive(self) -> Message:
        """The next message, however long that takes.

        Raises:
            ChannelClosed: there is none: the other side is gone, stopped within a frame, or sent no frame.
        """
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.poll()
        frame, file = self._read_frame()
        magic, text_bytes, payload_bytes, checksum = _FRAME.unpack(frame)
        if magic != MAGIC or text_bytes > MOST_JSON or payload_bytes > MOST_PAYLOAD:
            _close(file)
            raise self._broken("this is no message of this protocol")
        text, payload = self._read(text_bytes), self._read(payload_bytes)
        if zlib.crc32(payload, zlib.crc32(text)) != checksum:
            _close(file)
            raise self._broken("the checksum of a message is wrong")
        try:
            head = json.loads(text)
        except ValueError as error:
            raise self._broken(f"a message is no JSON: {error}") from None
        if not isinstance(head, dict):
            raise self._broken("a message is no JSON object")
        return Message(head, payload, file)

    def close(self) -> None:
        """End both directions; what waits is dropped."""
        with self._lock:
            first, self.closed = not self.closed, True
        if first:
            self._waiting.put(None)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _read_frame(self) -> tuple[bytes, int]:
        found, files = b"", [-1]
        while len(found) < _FRAME.size:
            try:
                if self._files:
                    data, new, _, _ = socket.recv_fds(self._socket, _FRAME.size - len(found), 1)
                    files += new
                else:
                    data = self._socket.recv(_FRAME.size - len(found))
            except OSError as error:
                raise self._broken(_reason(error)) from error
            if not data:
                raise self._broken("the other side is gone")
            found += data
        return found, files[-1]

    def _read(self, size: int) -> bytes:
        found = bytearray(size)
        view, done = memoryview(found), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except OSError as error:
                raise self._broken(_reason(error)) from error
            if not count:
                raise self._broken("the other side is gone")
            done += count
        return bytes(found)

    def _broken(self, reason: str) -> ChannelClosed:
        self.close()
        self._left()
        return ChannelClosed(reason)

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            frame, payload, file = item
            try:
                if file >= 0:
                    sent = socket.send_fds(self._socket, [frame], [file])
                    frame = frame[sent:]
                self._socket.sendall(frame)
                self._socket.sendall(payload)
            except OSError:
                self.close()
            _close(file)
            with self._lock:
                self._waiting_bytes -= len(item[0]) + len(payload)
        while not self._waiting.empty():
            left = self._waiting.get()
            if left is not None:
                _close(left[2])
        self._left()

    def _left(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._socket.close()


def _close(file: int) -> None:
    if file >= 0:
        os.close(file)


def _reason(error: OSError) -> str:
    return "the other side stopped within a message" if isinstance(error, BlockingIOError) else str(error)
