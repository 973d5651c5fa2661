"""Names and ports of this machine, as the ranks of a run need them. No paddle."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress

#: variable with the name of this node, if it shall not be its host name; ranks get it too
NODE = "ERNIECORE_NODE"
_SIOCGIFADDR = 0x8915


def node_name() -> str:
    """The name of this node, as its user or its system calls it."""
    return os.environ.get(NODE) or socket.gethostname()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now at an address of this machine; at all of them, if it is empty."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def interface_to(host: str) -> str:
    """The network interface by which this machine reaches ``host``; ``""`` where that cannot be found out."""
    if not sys.platform.startswith("linux"):
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(packed[20:24]) == own:
                    return name
    return ""
