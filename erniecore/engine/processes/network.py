"""Names and ports of this machine, as the ranks of a run need them. No paddle."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from contextlib import suppress

#: variable with the name of this node, if it shall not be its host name; ranks get it too
NODE = "ERNIECORE_NODE"
#: what :func:`free_port` chooses from, above those that a node of Ray gives its workers (10002 to 19999), and how many of
#: these ports it tries
_PORTS, _TRIES = range(20000, 30000), 100
_SECRETS = frozenset({"KEY", "PASSWORD", "SECRET", "TOKEN"})


def node_name() -> str:
    """The name of this node, as its user or its system calls it."""
    return os.environ.get(NODE) or socket.gethostname()


def sent_along(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables that begin so, for processes on other machines; keys, tokens, passwords and secrets are not among them."""
    names = (name for name in sorted(environment) if name.startswith(prefixes) and _SECRETS.isdisjoint(name.split("_")))
    return {name: environment[name] for name in names}


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now at an address of this machine; at all of them, if it is empty.

    Between now and when its user listens, an outgoing connection of any process could be given the port by the kernel, so it
    is none of those that Linux gives them (32768 and up by default), unless all others are taken.
    """
    for port in random.SystemRandom().sample(_PORTS, _TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, port))
            return port
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
