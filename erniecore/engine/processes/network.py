"""Names and ports of this machine, as the ranks of a run need them. No paddle."""

from __future__ import annotations

import os
import socket

#: variable with the name of this node, if it shall not be its host name; ranks get it too
NODE = "ERNIECORE_NODE"


def node_name() -> str:
    """The name of this node, as its user or its system calls it."""
    return os.environ.get(NODE) or socket.gethostname()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now at an address of this machine; at all of them, if it is empty."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
