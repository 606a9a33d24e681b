"""What counts as one address where limits are per address."""

from __future__ import annotations

import ipaddress

NOBODY = "unknown"
FROM_HEADER = "x-headgate-from"
"""The header in which a gateway names the address of the client that it asks for."""
PREFIX_V6 = 64
"""A network that gives out one address of version 6 gives out all of that prefix."""


def counted_as(address: str) -> str:
    """`address`, or the network that stands for it; one name for all texts that are no address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return NOBODY
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, PREFIX_V6), strict=False))
