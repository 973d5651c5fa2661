"""The hash of a file of any size. Standard library only."""

from __future__ import annotations

import hashlib
from typing import IO


def stream_hash(stream: IO[bytes]) -> str:
    """sha256 of what is left of ``stream``, in hexadecimal; read in pieces."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # raw and buffered files have it
        digest.update(buffer[:count])
    return digest.hexdigest()
