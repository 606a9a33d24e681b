"""Which ingest node a gateway passes a produce request on to, for how long, and when again.

Any of them will do where the key leads to the partition, so they take turns. On an opportunistic
topic the node chooses the partition, and only it knows what it has under way. Invariant: what is
repeated goes to the same node first (see homes.py), for as long as that is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.decide.durations import parse_duration_ms
from headgate.decide.produce import homes
from headgate.errors import InvalidRequest, NotNow, PeerUnreachable, UnknownTopic
from headgate.model.api import REQUEST_TIMEOUT_DEFAULT, ErrorAnswer

LONGEST_S = 16 * 60.0
"""Above the longest request_timeout that a node accepts."""
GRACE_S = 30.0
"""A node answers when the request_timeout ends; one that hasn't by so much later is frozen, or
can't be heard."""


class _Timed(msgspec.Struct, frozen=True):
    request_timeout: str = REQUEST_TIMEOUT_DEFAULT


class _Named(msgspec.Struct, frozen=True):
    event_id: str | None = None


class _Events(msgspec.Struct, frozen=True):
    events: list[_Named] = []


_timed = msgspec.json.Decoder(_Timed)
_named = msgspec.json.Decoder(_Events)
_refused = msgspec.json.Decoder(ErrorAnswer)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])


def in_turn(urls: Sequence[str], turn: int) -> list[str]:
    """All addresses, beginning with another one for each `turn`."""
    first = turn % len(urls) if urls else 0
    return [*urls[first:], *urls[:first]]


def by_request(urls: Sequence[str], body: bytes, turn: int) -> list[str]:
    """All of them, in an order that is the same whenever the request comes; one whose first event
    has no id is never the same again."""
    first_id = _ids(body)[:1]
    return homes.in_order(urls, first_id[0]) if first_id and first_id[0] else in_turn(urls, turn)


def wait_s(body: bytes) -> float:
    """How long the answer may take. A connection to a node that never answers is taken for so long,
    even if the producer has left: no longer than the request asks for."""
    timeout_s = _timeout_s(body)
    return LONGEST_S if timeout_s is None else min(timeout_s + GRACE_S, LONGEST_S)


def timeout_s(body: bytes) -> float:
    """How long the request may take; no time at all for one that is wrong, as a node will say."""
    return _timeout_s(body) or 0.0


def _timeout_s(body: bytes) -> float | None:
    try:
        return parse_duration_ms(_timed.decode(body).request_timeout) / 1_000
    except (ValueError, RecursionError, InvalidRequest):
        return None


def within(body: bytes, left_s: float) -> bytes:
    """The same request, with what is left of its time."""
    parts = _parts.decode(body)
    parts["request_timeout"] = msgspec.Raw(f'"{round(left_s * 1_000)}ms"'.encode())
    return msgspec.json.encode(parts)


def may_repeat(body: bytes) -> bool:
    """Whether every event came with an id, by which it is known where it was written before."""
    ids = _ids(body)
    return bool(ids) and all(ids)


def _ids(body: bytes) -> list[str | None]:
    if b'"event_id"' not in body:
        return []
    try:
        return [event.event_id for event in _named.decode(body).events]
    except (ValueError, RecursionError):
        return []


def was_refused_for_now(status: int, body: bytes) -> bool:
    """Whether an answer says that nothing was written, for a reason that another node, or a later
    moment, may not have: its node stops, or knows no owner yet."""
    return status == NotNow.status and _code(body) in (NotNow.code, PeerUnreachable.code)


def has_no_such_topic(status: int, body: bytes) -> bool:
    """Whether an answer says so; its node may have yet to hear of the topic."""
    return status == UnknownTopic.status and _code(body) == UnknownTopic.code


def _code(body: bytes) -> str:
    """Of an error; of anything else none."""
    try:
        return _refused.decode(body).error.code
    except (ValueError, RecursionError):
        return ""
