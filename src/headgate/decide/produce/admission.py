"""What may enter the log: the body of a produce request becomes events, or one clear error.

Invariant: an event that leaves here has a JSON object as its document, in valid UTF-8, without line
breaks (one document fits one line wherever it is written), within every limit, under an id that is
unique in its request; the document before the change, where there is one, is held to the same. A
request with one bad event is refused whole, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import msgspec

from headgate.decide.durations import parse_duration_ms
from headgate.decide.produce.headers import encoded
from headgate.errors import InvalidRequest, TooLarge
from headgate.model.api import MAX_EVENTS_PER_REQUEST, ProduceEvent, ProduceRequest
from headgate.model.event import Event, ProducedOp
from headgate.model.topology import Topic

REQUEST_TIMEOUT_MS_ABOVE = 10
REQUEST_TIMEOUT_MS_MAX = 15 * 60_000
OPENING_BRACE = ord("{")
LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""

_DECODER = msgspec.json.Decoder(ProduceRequest)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPS = ", ".join(get_args(ProducedOp))
_OP_OF_EVENT = re.compile(r"('.{0,100}') - at `\$\.(events\[\d+\]\.op)`$")
"""How the decoder ends its sentence about an `op` that producers have no word for."""
_BRACKET = re.compile(rb"[\[\]{}]")
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class _Routed(msgspec.Struct, frozen=True):
    version: int | None = None


_ROUTED = msgspec.json.Decoder(_Routed)


@dataclass(frozen=True, slots=True)
class ProduceLimits:
    """The bounds of one produce request."""

    body_bytes: int = 16 * 1024 * 1024
    events: int = MAX_EVENTS_PER_REQUEST
    document_bytes: int = 1024 * 1024
    document_depth: int = 64
    key_bytes: int = 1_024
    event_id_bytes: int = 256
    collection_bytes: int = 256


def is_routed(body: bytes) -> bool:
    """Whether the producer routed it by itself, and so knows the topic."""
    try:
        return _ROUTED.decode(body).version is not None
    except (msgspec.MsgspecError, RecursionError):
        return False


class Admitted(msgspec.Struct, frozen=True):
    """A request that may be written, and how long its caller waits for that.

    `version` is the partitioning version that the caller routed it under, if it routes at all.
    `ids_given`: some ids are the caller's own, so it may send the same events again; `again`: it
    says that it does, in other company.
    """

    events: list[Event]
    timeout_ms: int
    version: int | None = None
    ids_given: bool = False
    again: bool = False


def admit(
    body: bytes, topic: Topic, limits: ProduceLimits, *, new_id: Callable[[], str]
) -> Admitted:
    """Read `body` for `topic`; raises InvalidRequest or TooLarge, naming the event at fault.

    `new_id` gives an id to the events that came without one.
    """
    request = _decode(body, limits)
    timeout_ms = _request_timeout_ms(request.request_timeout)
    events = _plain(body, request.events, topic, limits)
    if events is not None:
        return Admitted(events, timeout_ms, request.version, True, request.again)
    events = _careful(request.events, topic, limits, new_id)
    ids_given = any(offered.event_id is not None for offered in request.events)
    return Admitted(events, timeout_ms, request.version, ids_given, request.again)


def _plain(
    body: bytes, offered: list[ProduceEvent], topic: Topic, limits: ProduceLimits
) -> list[Event] | None:
    """The events, where a glance at each shows that nothing is wrong or to be changed; else None.

    Most requests are like that, and the way below takes three times as long. Whatever this lets
    through, `_careful` would let through just the same.
    """
    if len(offered) == 1:
        event = _plain_one(body, offered[0], topic, limits)
        return None if event is None else [event]
    if [one.earlier for one in offered].count(msgspec.UNSET) < len(offered):
        return None
    if [one.headers for one in offered].count(msgspec.UNSET) < len(offered):
        return None
    events = [
        Event(one.event_id or "", bytes(one.document), one.key, one.op, one.collection)
        for one in offered
    ]
    ids = {event.event_id for event in events}
    keys = {event.key for event in events if event.key is not None}
    if len(ids) < len(events) or "" in ids or (keys and topic.placement == "opportunistic"):
        return None
    lengths = {len(name) for name in (*ids, *keys, *{event.collection for event in events})}
    shortest = min(limits.event_id_bytes, limits.key_bytes, limits.collection_bytes)
    if max(lengths) * LONGEST_CHARACTER > shortest or b"\n" in body or b"\r" in body:
        return None
    documents = [event.document for event in events]
    if {document[0] for document in documents} != {OPENING_BRACE}:
        return None
    if len(body) > limits.document_bytes < max(map(len, documents)):
        return None
    # Each event opens two objects, its own and its document, and there are two around all of them:
    # what is left is as much as a single document can have opened besides.
    if _opened(body) - 2 * len(events) - 1 > limits.document_depth:
        return events if max(map(_opened, documents)) <= limits.document_depth else None
    return events


def _plain_one(
    body: bytes, offered: ProduceEvent, topic: Topic, limits: ProduceLimits
) -> Event | None:
    """The same for a request of one event, which waits for nothing but this."""
    event_id, key, document = offered.event_id, offered.key, bytes(offered.document)
    if not event_id or (key is not None and topic.placement == "opportunistic"):
        return None
    longest = max(len(event_id), len(key or ""), len(offered.collection))
    shortest = min(limits.event_id_bytes, limits.key_bytes, limits.collection_bytes)
    if longest * LONGEST_CHARACTER > shortest or offered.earlier is not msgspec.UNSET:
        return None
    if offered.headers is not msgspec.UNSET:
        return None
    if document[0] != OPENING_BRACE or b"\n" in body or b"\r" in body:
        return None
    if len(document) > limits.document_bytes or _opened(document) > limits.document_depth:
        return None
    return Event(event_id, document, key, offered.op, offered.collection)


def _opened(text: bytes) -> int:
    """How many brackets open, in strings too. To take them out is three times as fast as to count
    them, where most of the text is something else."""
    return 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b""))


def _careful(
    offered: list[ProduceEvent],
    topic: Topic,
    limits: ProduceLimits,
    new_id: Callable[[], str],
) -> list[Event]:
    """The events one by one, each with its own error."""
    events: list[Event] = []
    seen: set[str] = set()
    for index, one in enumerate(offered):
        event = _event(index, one, topic, limits, new_id)
        if event.event_id in seen:
            raise InvalidRequest(
                f"event {index} repeats the event_id {event.event_id!r} of an earlier event in the "
                "same request: send each event once",
                index=index,
                event_id=event.event_id,
            )
        seen.add(event.event_id)
        events.append(event)
    return events


def _decode(body: bytes, limits: ProduceLimits) -> ProduceRequest:
    if len(body) > limits.body_bytes:
        raise TooLarge(
            f"the body has more than {limits.body_bytes} bytes (ingest.max_body): send fewer "
            "events per request",
            limit=limits.body_bytes,
        )
    try:
        body.decode()  # The decoder doesn't look inside raw documents for broken UTF-8.
        request = _DECODER.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not valid UTF-8 at byte {error.start}", position=error.start
        ) from error
    except RecursionError as error:
        raise InvalidRequest(
            f"a document is nested deeper than {limits.document_depth} levels",
            limit=limits.document_depth,
        ) from error
    except msgspec.DecodeError as error:
        if found := _OP_OF_EVENT.search(str(error)):
            raise InvalidRequest(f"{found[2]} is {found[1]}: use one of {_OPS}") from error
        raise InvalidRequest(f"the body is not a produce request: {error}") from error
    if not request.events:
        raise InvalidRequest("the request has no events: send at least one")
    if len(request.events) > limits.events:
        raise TooLarge(
            f"the request has {len(request.events)} events, the limit is {limits.events}: "
            "split it into several",
            limit=limits.events,
        )
    return request


@lru_cache(maxsize=256)
def _request_timeout_ms(text: str) -> int:
    timeout_ms = parse_duration_ms(text)
    if not REQUEST_TIMEOUT_MS_ABOVE < timeout_ms <= REQUEST_TIMEOUT_MS_MAX:
        raise InvalidRequest(
            f"request_timeout is {text}: it must be more than {REQUEST_TIMEOUT_MS_ABOVE}ms and at "
            f"most {REQUEST_TIMEOUT_MS_MAX // 60_000}m",
            request_timeout=text,
        )
    return timeout_ms


def _event(
    index: int,
    offered: ProduceEvent,
    topic: Topic,
    limits: ProduceLimits,
    new_id: Callable[[], str],
) -> Event:
    if offered.key is not None:
        if topic.placement == "opportunistic":
            raise InvalidRequest(
                f"event {index} has a key, but the topic {topic.name} is opportunistic and keeps "
                "no order per key: leave the key out or use a keyed topic",
                index=index,
            )
        _check_length(index, "key", offered.key, limits.key_bytes)
    if offered.event_id == "":
        raise InvalidRequest(f"event {index} has an empty event_id: leave it out instead")
    if offered.event_id is not None:
        _check_length(index, "event_id", offered.event_id, limits.event_id_bytes)
    _check_length(index, "collection", offered.collection, limits.collection_bytes)
    return Event(
        event_id=new_id() if offered.event_id is None else offered.event_id,
        document=_document(f"the document of event {index}", index, offered.document, limits),
        key=offered.key,
        op=offered.op,
        collection=offered.collection,
        earlier=_earlier(index, offered.earlier, limits),
        headers=None if offered.headers is msgspec.UNSET else _headers(index, offered.headers),
    )


def _headers(index: int, headers: dict[str, str]) -> bytes | None:
    return encoded(headers, f"event {index}")


def _check_length(index: int, field: str, text: str, limit: int) -> None:
    # Most texts need no encoding to be cleared.
    if len(text) * LONGEST_CHARACTER > limit and len(text.encode()) > limit:
        raise InvalidRequest(
            f"event {index} has a {field} of more than {limit} bytes: shorten it",
            index=index,
            limit=limit,
        )


def _earlier(
    index: int, offered: msgspec.Raw | msgspec.UnsetType, limits: ProduceLimits
) -> bytes | None:
    if isinstance(offered, msgspec.UnsetType) or bytes(offered) == b"null":
        return None
    return _document(f"the earlier document of event {index}", index, offered, limits)


def _document(what: str, index: int, offered: msgspec.Raw, limits: ProduceLimits) -> bytes:
    document = bytes(offered)
    if not document.startswith(b"{"):
        raise InvalidRequest(
            f"{what} is not a JSON object: wrap the value in one",
            index=index,
        )
    if len(document) > limits.document_bytes:
        raise TooLarge(
            f"{what} has {len(document)} bytes, the limit is {limits.document_bytes} "
            "(ingest.max_document)",
            index=index,
            limit=limits.document_bytes,
        )
    if nesting_exceeds(document, limits.document_depth):
        raise InvalidRequest(
            f"{what} is nested deeper than {limits.document_depth} levels (ingest.max_depth)",
            index=index,
            limit=limits.document_depth,
        )
    return on_one_line(document)


def nesting_exceeds(document: bytes, depth_max: int) -> bool:
    """Whether the valid JSON text `document` opens more than `depth_max` levels at once."""
    if document.count(b"{") + document.count(b"[") <= depth_max:
        return False
    depth = 0
    for match in _BRACKET.finditer(_STRING.sub(b"", document)):
        depth += 1 if match[0] in b"[{" else -1
        if depth > depth_max:
            return True
    return False


def on_one_line(document: bytes) -> bytes:
    """Valid JSON without line breaks: outside of strings they are blanks, inside there are none."""
    return document.translate(_LINE_BREAKS) if b"\n" in document or b"\r" in document else document
