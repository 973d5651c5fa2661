"""What agents say to each other over one connection: lines of JSON, each with an HMAC-SHA256 (RFC 2104) by the key of this
connection over its direction, its number and its text. The key is the HMAC of two nonces, one of each end, by the secret that
the machines share, so nothing that was recorded is accepted again, in this connection or another one. Nothing is encrypted:
the messages are no secrets. Lengths and times are bounded. Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erniecore.api import ConfigError
from erniecore.api.files import parse_json, read_bytes

#: variable that holds the secret itself; a file is named by ``launcher.secret_file``
SECRET = "ERNIECORE_SECRET"
#: bytes of a line before the other end has shown that it knows the secret, and afterwards
FIRST_MOST, MOST = 4096, 8 << 20
#: seconds in which it has to show that
FIRST_TIMEOUT = 5.0
#: shortest and longest secret, bytes
_SHORTEST, _LONGEST = 16, 4096
_PROTOCOL = b"erniecore agents 1"


class Distrusted(ValueError):
    """What has come is not from an agent that knows the secret, or not meant to come here and now."""


def read_secret(file: str, environ: Mapping[str, str], note: Callable[[str], None]) -> bytes:
    """The secret of this run from a file or, without one, from the environment; empty without either.

    Args:
        note: told if others may read the file.
    Raises:
        ConfigError: the file cannot be read, or the secret is too short or too long.
    """
    where = "launcher.secret_file"
    if file:
        try:
            found = read_bytes(Path(file), _LONGEST).strip()
            if stat.S_IMODE(os.stat(file).st_mode) & 0o077:
                note(f"note: other users may read {file}: chmod 600 {file}")
        except OSError as error:
            raise ConfigError.at(where, f"the secret cannot be read: {error}") from error
    else:
        found = environ.get(SECRET, "").strip().encode()
        if not found:
            return b""
    if not _SHORTEST <= len(found) <= _LONGEST:
        place = file or SECRET
        fix = f"write a longer one, e.g. `openssl rand -hex 32 > {file or 'secret'}`"
        raise ConfigError.at(
            where, f"the secret in {place} has {len(found)} bytes; {_SHORTEST} to {_LONGEST} are needed", fix=fix
        )
    return found


class Channel:
    """One end of a connection. Until :meth:`agree` nothing is authenticated.

    Args:
        first: this end is the first machine.

    Attributes:
        nonce: of this end. lost: why the connection is of no use any more; empty while it is. heard: when something came.
    """

    def __init__(self, peer: socket.socket, *, first: bool) -> None:
        self.socket, self.nonce, self.lost = peer, secrets.token_hex(16), ""
        self.heard = time.monotonic()
        self._own, self._other = (b"first", b"other") if first else (b"other", b"first")
        self._first, self._key, self._buffer = first, b"", b""
        self._sent = self._received = 0

    def agree(self, secret: bytes, nonce: object) -> None:
        """The key of this connection. Raises ``Distrusted`` where the other end's nonce is none."""
        if not isinstance(nonce, str) or len(nonce) != 32 or not nonce.isalnum():
            raise Distrusted("no nonce")
        one, two = (self.nonce, nonce) if self._first else (nonce, self.nonce)
        self._key = hmac.digest(secret, _PROTOCOL + f" {one} {two}".encode(), hashlib.sha256)

    def _code(self, direction: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self._key, b"%s %d " % (direction, number) + text, hashlib.sha256).hex().encode()

    def pack(self, message: Mapping[str, Any]) -> bytes:
        """The next line to send."""
        text = json.dumps(message).encode()
        if not self._key:
            return text + b"\n"
        self._sent += 1
        return self._code(self._own, self._sent, text) + b" " + text + b"\n"

    def unpack(self, line: bytes) -> dict[str, Any]:
        """The message of the next line that has come. Raises ``Distrusted``."""
        if self._key:
            code, _, line = line.partition(b" ")
            self._received += 1
            if not hmac.compare_digest(code, self._code(self._other, self._received, line)):
                raise Distrusted("it does not know the secret of the run")
        try:
            message = parse_json(line)
        except ValueError as error:
            raise Distrusted(f"what it says is no message: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get("do"), str):
            raise Distrusted("what it says is no message")
        return message

    def send(self, **message: Any) -> None:
        """One message; a connection that breaks is noted."""
        try:
            self.socket.sendall(self.pack(message))
        except OSError as error:
            self.lost = self.lost or str(error)

    def read(self, most: int) -> bytes | None:
        """The next line as far as it is there, without its end; None if there is none yet. Does not wait.

        Raises:
            Distrusted: it has more than ``most`` bytes. OSError: the connection is gone, or the other end has closed it.
        """
        while b"\n" not in self._buffer:
            if len(self._buffer) > most:
                raise Distrusted(f"it sent a line of more than {most} bytes")
            if not select.select([self.socket], [], [], 0)[0]:
                return None
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("its agent has ended")
            self.heard, self._buffer = time.monotonic(), self._buffer + data
        line, _, self._buffer = self._buffer.partition(b"\n")
        if len(line) > most:
            raise Distrusted(f"it sent a line of more than {most} bytes")
        return line

    def await_message(self, end: float, most: int = FIRST_MOST) -> dict[str, Any]:
        """The next message. Raises ``TimeoutError`` at ``end`` (of ``time.monotonic``), and what :meth:`read` raises."""
        while (line := self.read(most)) is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError("it does not answer")
        return self.unpack(line)

    def close(self) -> None:
        """End the connection; what was sent arrives, what was not read is dropped."""
        self.socket.close()
