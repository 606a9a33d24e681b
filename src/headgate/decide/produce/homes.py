"""Which ingest node takes a request of an opportunistic topic: the one that its first id leads to.

A retry may come from anywhere, and only a node that has the first attempt under way knows of it. So
everybody who sends one, a gateway, a client or another node, sends it to the same node. Invariant:
who knows the same nodes chooses alike, whatever their order, and a node that comes or goes changes
nothing between the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

from headgate.decide.produce.placement import fnv1a_64


def in_order(urls: Iterable[str], first_id: str) -> list[str]:
    """The nodes in the order in which they are to be asked: the next one where one isn't there."""
    mark = zlib.crc32(first_id.encode("utf-8", "surrogatepass")).to_bytes(4)
    return sorted(urls, key=lambda url: fnv1a_64(mark, _begun(url)))


def home(urls: Iterable[str], first_id: str) -> str:
    """The first of them; empty where there are none."""
    known = list(urls)
    return known[0] if len(known) == 1 else next(iter(in_order(known, first_id)), "")


@lru_cache(maxsize=1_024)
def _begun(url: str) -> int:
    return fnv1a_64(url.encode())
