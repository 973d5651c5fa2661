"""Names and ports of this machine, as the ranks of a run need them. No paddle."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

#: variable with the name of this node, if it shall not be its host name; ranks get it too
NODE = "ERNIECORE_NODE"
_SECRETS = frozenset({"KEY", "PASSWORD", "SECRET", "TOKEN"})


def node_name() -> str:
    """The name of this node, as its user or its system calls it."""
    return os.environ.get(NODE) or socket.gethostname()


def sent_along(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables that begin so, for processes on other machines; keys, tokens, passwords and secrets are not among them."""
    names = (name for name in sorted(environment) if name.startswith(prefixes) and _SECRETS.isdisjoint(name.split("_")))
    return {name: environment[name] for name in names}


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now at an address of this machine; at all of them, if it is empty."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
