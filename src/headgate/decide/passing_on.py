"""Which ingest node a gateway passes a produce request on to.

Any of them will do where the key leads to the partition, so they take turns. On an opportunistic
topic the node chooses the partition, and a request that is repeated after its answer got lost is
known to that node alone. Invariant: what is repeated goes to the same node first, for as long as
that is there, whoever comes and goes beside it; a gateway that knows the same nodes chooses alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from headgate.decide.placement import fnv1a_64


def in_turn(urls: Sequence[str], turn: int) -> list[str]:
    """All of them, beginning with another one each time."""
    first = turn % len(urls) if urls else 0
    return [*urls[first:], *urls[:first]]


def by_request(urls: Sequence[str], body: bytes, turn: int) -> list[str]:
    """All of them, in an order that is the same whenever the request comes; one without ids is
    never the same again."""
    if b'"event_id"' not in body:
        return in_turn(urls, turn)
    # What stands behind the events is the time that is left, and differs.
    mark = zlib.crc32(body[: body.rfind(b"]")]).to_bytes(4)
    return sorted(urls, key=lambda url: fnv1a_64(url.encode() + mark))
