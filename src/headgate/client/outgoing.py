"""What a producer is given and gives back, and how that looks in a request.

Invariant: an event that goes on the wire has an id, so that it can be sent again safely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate import errors
from headgate.decide.event_id import ENTROPY_BYTES, event_id
from headgate.model.api import ProduceEvent
from headgate.model.event import Op

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
    matched that one and don't match the new one are told so.
    """

    document: Document
    key: str | None = None
    op: Op = "insert"
    event_id: str | None = None
    collection: str = ""
    earlier: Document | None = None


Outcome = Receipt | errors.HeadgateError


def wire_event(event: OutgoingEvent) -> ProduceEvent:
    return ProduceEvent(
        document=msgspec.Raw(_document(event.document)),
        key=event.key,
        op=event.op,
        event_id=event.event_id or _new_id(),
        collection=event.collection,
        earlier=(msgspec.UNSET if event.earlier is None else msgspec.Raw(_document(event.earlier))),
    )


def _document(document: Document) -> bytes:
    if isinstance(document, bytes | str):
        return _one_object(document.encode() if isinstance(document, str) else document)
    try:
        return msgspec.json.encode(document)
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"the document can't be written as JSON: {error}") from error


def _one_object(text: bytes) -> bytes:
    """`text`, which goes into a request as it is: so it must be one JSON object and no more."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise errors.InvalidRequest(f"the document is not valid JSON: {error}") from error
    if not text.lstrip().startswith(b"{"):
        raise errors.InvalidRequest("the document is JSON but no object: write it in braces")
    return text


def weight_bytes(event: ProduceEvent) -> int:
    """About how many bytes `event` takes in a request."""
    texts = len(event.key or "") + len(event.event_id or "") + len(event.collection)
    earlier = b"" if isinstance(event.earlier, msgspec.UnsetType) else bytes(event.earlier)
    return len(bytes(event.document)) + len(earlier) + texts * 2 + 100


def _new_id() -> str:
    return event_id(time.time_ns() // 1_000_000, os.urandom(ENTROPY_BYTES))
