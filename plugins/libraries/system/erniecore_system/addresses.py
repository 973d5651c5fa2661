"""What an address of a network says by itself. Standard library only."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # as Python 3.13 has it; sockets of both families name peers of IPv4 so
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
