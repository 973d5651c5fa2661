"""This process becomes a driver of a Ray cluster."""

from __future__ import annotations

import logging
import re
import signal
import socket
from typing import Any

from erniecore.api import EnvironmentFault, install_command

#: seconds in which a cluster must answer; Ray itself would try for minutes
_PATIENCE = 10.0


def knock(address: str) -> None:
    """Raises ``OSError`` where an ``address`` HOST:PORT does not answer; others are left to Ray."""
    if found := re.fullmatch(r"([^/:]+):(\d+)", address):
        socket.create_connection((found[1], int(found[2])), timeout=_PATIENCE).close()


def join(address: str, where: str, what: str) -> Any:
    """The module ``ray``, connected to the cluster at ``address`` (``auto``: the one of this machine, or ``$RAY_ADDRESS``).

    Args:
        where: the setting that named it; what: who needs it.
    Raises:
        EnvironmentFault: there is no cluster, or no Ray.
    """
    try:
        import ray
    except ImportError as error:
        raise EnvironmentFault(
            f"{what} needs the package ray", found=str(error), next=install_command("ray", of="erniecore-ray")
        ) from error
    kept = signal.getsignal(signal.SIGTERM)
    try:
        knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise EnvironmentFault(
            "no Ray cluster", where=where, found=str(error).splitlines()[0],
            fix="`ray start --head` on the first node and `ray start --address …` on the others", code="ERN-E022",
        ) from error  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, kept)  # Ray's own handler would end this process, and the run unsaved
    return ray
