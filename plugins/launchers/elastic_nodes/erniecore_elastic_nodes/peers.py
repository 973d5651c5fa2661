"""Files for the neighbor: each rank sends what it has written to a rank of another machine, over a connection of their own, and
keeps what it is sent. The ranks trust each other as far as Paddle's collectives do, which are not protected either; a random
token keeps others from writing here by accident. Standard library only.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shutil
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from erniecore.api import CheckpointError
from erniecore_elastic_nodes.memory import step_directory

#: seconds of silence after which a transfer has failed; bytes of its first line
_TIMEOUT, _LINE = 60.0, 4096


def neighbor(rank: int, nodes: Sequence[str]) -> int | None:
    """To whom ``rank`` gives its files: the next rank on another machine; None where there is only one machine. ``nodes``: of
    each rank. Every machine gives to the one after it, so that any machine's files are on two."""
    for distance in range(1, len(nodes)):
        other = (rank + distance) % len(nodes)
        if nodes[other] != nodes[rank]:
            return other
    return None


class PeerFiles:
    """Takes files of another rank, in a thread of its own, until the process ends.

    Args:
        root: directory of the copies of this machine. host: address of this machine as the others reach it.
    """

    def __init__(self, root: Path, host: str) -> None:
        self._root, self.token = root, secrets.token_hex(16)
        self._socket = socket.create_server((host, 0), backlog=64)
        self.address = self._socket.getsockname()[:2]
        threading.Thread(target=self._serve, name="peer copies", daemon=True).start()

    def close(self) -> None:
        """Take nothing any more."""
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._take, args=[peer], name="peer copy", daemon=True).start()

    def _take(self, peer: socket.socket) -> None:
        peer.settimeout(_TIMEOUT)
        with peer, suppress(OSError, ValueError, KeyError, TypeError), peer.makefile("rb") as stream:
            head = json.loads(stream.readline(_LINE))
            if not hmac.compare_digest(str(head["token"]), self.token):
                return
            directory = step_directory(self._root, int(head["step"])) / f"peer-{int(head['rank'])}"
            directory.mkdir(parents=True, exist_ok=True)
            for name, size in head["files"]:
                if "/" in name or not name.endswith(".safetensors"):
                    return
                left = int(size)
                with (directory / name).open("wb") as file:
                    while left and (block := stream.read(min(left, 1 << 20))):
                        file.write(block)
                        left -= len(block)
                if left:
                    return
            peer.sendall(b"taken\n")


def send(address: tuple[str, int], token: str, rank: int, step: int, files: Sequence[Path]) -> None:
    """Give these files to the rank at ``address``, and wait until it has them.

    Raises:
        CheckpointError: it is gone, or has no room.
    """
    head = {"token": token, "rank": rank, "step": step, "files": [[path.name, path.stat().st_size] for path in files]}
    try:
        with socket.create_connection(address, timeout=_TIMEOUT) as peer, peer.makefile("wb") as stream:
            stream.write(json.dumps(head).encode() + b"\n")
            for path in files:
                with path.open("rb") as file:
                    shutil.copyfileobj(file, stream, 1 << 20)
            stream.flush()
            said = peer.recv(16)
    except OSError as error:
        raise CheckpointError(
            "the copy of the state for the neighbor was not sent", where="{}:{}".format(*address), found=str(error)
        ) from error
    if said != b"taken\n":
        raise CheckpointError(
            "the neighbor did not keep its copy of the state",
            where="{}:{}".format(*address),
            fix="has it room in /dev/shm?",
        )
