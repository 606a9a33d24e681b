"""Which ingest node a gateway passes a produce request on to, and how long it waits for it.

Any of them will do where the key leads to the partition, so they take turns. On an opportunistic
topic the node chooses the partition, and a request that is repeated after its answer got lost is
known to that node alone. Invariant: what is repeated goes to the same node first, for as long as
that is there, whoever comes and goes beside it; a gateway that knows the same nodes chooses alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from headgate.decide.durations import parse_duration_ms
from headgate.decide.placement import fnv1a_64
from headgate.errors import InvalidRequest
from headgate.model.api import REQUEST_TIMEOUT_DEFAULT

LONGEST_S = 16 * 60.0
"""Above the longest request_timeout that a node accepts."""
GRACE_S = 30.0
"""A node answers when the request_timeout ends; one that hasn't by so much later is frozen, or
can't be heard."""


class _Timed(msgspec.Struct, frozen=True):
    request_timeout: str = REQUEST_TIMEOUT_DEFAULT


_timed = msgspec.json.Decoder(_Timed)


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


def wait_s(body: bytes) -> float:
    """How long the answer may take. A connection to a node that never answers is taken for so long,
    even if whoever asked has left: no longer than the request asks for."""
    try:
        timeout_ms = parse_duration_ms(_timed.decode(body).request_timeout)
    except (ValueError, RecursionError, InvalidRequest):
        return LONGEST_S  # the node will say what is wrong with it
    return min(timeout_ms / 1_000 + GRACE_S, LONGEST_S)
