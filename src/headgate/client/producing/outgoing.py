"""What a producer is given and gives back, and how that looks in a request.

Invariants: an event that goes on the wire has an id, so that it can be sent again safely. It can be
hashed and encoded, too: what can't be is refused while the call that brought it is alone with it,
because later on it would fail those that travel along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import msgspec

from headgate import errors
from headgate.client.texts import plain, type_of, unclassed
from headgate.decide.produce.event_ids import ENTROPY_BYTES, event_id
from headgate.decide.produce.headers import encoded
from headgate.model.api import ProduceEvent
from headgate.model.event import ProducedOp
from headgate.ports.machine import Machine

Document = Mapping[str, Any] | bytes | str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The event is on disk, there."""

    partition: int
    seq: int
    event_id: str


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event to send; `document` is a mapping, or JSON text that is passed on as it is.

    `earlier` is the document before the change, in the same forms: subscribers whose filters
    matched that one and don't match the new one are told so. `headers` are short texts by name that
    subscribers get with the event, 4 KiB in all.
    """

    document: Document
    key: str | None = None
    op: ProducedOp = "insert"
    event_id: str | None = None
    collection: str = ""
    earlier: Document | None = None
    headers: Mapping[str, str] | None = None


Outcome = Receipt | errors.HeadgateError

_OPS = frozenset(get_args(ProducedOp))


def wire_event(event: OutgoingEvent, machine: Machine) -> ProduceEvent:
    """`event` as it is sent; raises InvalidRequest for what never could be."""
    op: Any = event.op
    if type(op) is not str or op not in _OPS:
        op = _op(op)
    own_id = "" if event.event_id is None else plain("event_id", event.event_id)
    return ProduceEvent(
        document=msgspec.Raw(_document(event.document)),
        key=None if event.key is None else plain("key", event.key),
        op=op,
        event_id=own_id or _new_id(machine),
        collection=plain("collection", event.collection),
        earlier=(msgspec.UNSET if event.earlier is None else msgspec.Raw(_document(event.earlier))),
        headers=_headers(event.headers) if event.headers else msgspec.UNSET,
    )


def _op(op: object) -> ProducedOp:
    found = plain("op", op)
    if found not in _OPS:
        raise errors.InvalidRequest(f"op is {found!r}: use one of {', '.join(sorted(_OPS))}")
    return cast("ProducedOp", found)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise errors.InvalidRequest(f"headers are {type_of(headers)}: give texts by name")
    found = {unclassed(name): unclassed(text) for name, text in headers.items()}
    encoded(found, "the event")
    return found


def _document(document: Document) -> bytes:
    if isinstance(document, bytes | str):
        return _one_object(document)
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidRequest(f"the document can't be written as JSON: {error}") from error
    if not text.startswith(b"{"):
        raise errors.InvalidRequest(f"the document is {type_of(document)}: give it as a mapping")
    if b"null" in text:
        _check_numbers(msgspec.to_builtins(document), "")
    return text


def _check_numbers(value: object, path: str) -> None:
    """The encoder writes null for a number that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise errors.InvalidRequest(
            f"{path} is {value}, a number that JSON doesn't have: send null, or leave it out"
        )
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_numbers(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            _check_numbers(part, f"{path}[{index}]")


def _one_object(document: bytes | str) -> bytes:
    """The text, which goes into a request as it is: so it must be one JSON object and no more."""
    try:
        text = document.encode() if isinstance(document, str) else document
        if not text.isascii():
            text.decode()  # The decoder doesn't look inside strings that it only skips.
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.InvalidRequest(f"the document is not valid JSON: {error}") from error
    if not text.lstrip().startswith(b"{"):
        raise errors.InvalidRequest("the document is JSON but no object: write it in braces")
    return text


def weight_bytes(event: ProduceEvent) -> int:
    """About how many bytes `event` takes in a request."""
    texts = len(event.key or "") + len(event.event_id or "") + len(event.collection)
    size_bytes = len(event.document) + 100
    if not isinstance(event.earlier, msgspec.UnsetType):
        size_bytes += len(event.earlier)
    if event.headers:
        texts += sum([len(name) + len(text) for name, text in event.headers.items()])
    return size_bytes + texts * 2


def _new_id(machine: Machine) -> str:
    return event_id(machine.wall_ms(), machine.entropy(ENTROPY_BYTES))
