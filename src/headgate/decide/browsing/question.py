"""What a reader wants to see of a topic, from the parameters of a request.

Invariant: whatever can't be understood is refused with one sentence that names the parameter, and
every bound that a request may choose has one that it can't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.decide.browsing import cursor as cursors
from headgate.decide.browsing.cursor import BrowseCursor, Direction
from headgate.decide.durations import parse_duration_ms
from headgate.decide.feed.start_positions import Start, parse_start
from headgate.errors import InvalidRequest
from headgate.model.api import MAX_PARTITIONS
from headgate.model.browse_api import (
    BYTES_DEFAULT,
    BYTES_MAX,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    TIMEOUT_DEFAULT,
    TIMEOUT_MAX_MS,
)

PARAMETERS: Mapping[str, str] = {
    "from": "Where to begin: earliest, now (the end), a time such as 2026-01-31T12:00:00Z, or "
    "PARTITION:SEQ,…; without it the earliest going forward, and the end going backward.",
    "direction": "forward, or backward (the newest first); without from and direction it is "
    "backward, and without direction forward.",
    "cursor": "Where the answer before ended; instead of from and direction.",
    "where": "Only records that match this CEL expression.",
    "key": "Only records with this key.",
    "collection": "Only records of this collection.",
    "partition": "Only records of this partition.",
    "limit": f"How many records, up to {LIMIT_MAX} (default {LIMIT_DEFAULT}).",
    "max_bytes": f"How many bytes of documents, up to {BYTES_MAX} (default {BYTES_DEFAULT}); one "
    "record comes in any case.",
    "timeout": f"How long to look for records, up to {TIMEOUT_MAX_MS // 1000}s (default "
    f"{TIMEOUT_DEFAULT}).",
}
"""With their description."""


@dataclass(frozen=True, slots=True)
class BrowseQuestion:
    """Where it begins (at `start`, or where `cursor` says), what is wanted, and how much."""

    start: Start
    direction: Direction
    cursor: BrowseCursor | None
    where: str | None
    key: str | None
    collection: str | None
    partition: int | None
    limit: int
    max_bytes: int
    timeout_ms: int


def question_of(parameters: Mapping[str, str], *, topic: str) -> BrowseQuestion:
    """Raises InvalidRequest for what isn't understood; the filter is for its compiler to check."""
    if unknown := sorted(set(parameters) - set(PARAMETERS)):
        raise InvalidRequest(
            f"looking at records has no parameter {unknown[0][:100]}; there are "
            f"{', '.join(PARAMETERS)}",
            parameter=unknown[0][:100],
        )
    cursor, direction, start = None, _direction(parameters), parameters.get("from")
    if text := parameters.get("cursor"):
        if start is not None or "direction" in parameters:
            raise InvalidRequest(
                "a cursor says where to go on and in which direction: leave out from and direction",
                parameter="cursor",
            )
        cursor = cursors.read(text, topic=topic)
        direction = cursor.direction
    if start is None:
        start = "earliest" if direction == "forward" else "now"
    return BrowseQuestion(
        parse_start(start),
        direction,
        cursor,
        where=parameters.get("where") or None,
        key=parameters.get("key"),
        collection=parameters.get("collection"),
        partition=_number(parameters, "partition", default=None, most=MAX_PARTITIONS - 1, least=0),
        limit=_number(parameters, "limit", default=LIMIT_DEFAULT, most=LIMIT_MAX) or 1,
        max_bytes=_number(parameters, "max_bytes", default=BYTES_DEFAULT, most=BYTES_MAX) or 1,
        timeout_ms=_timeout_ms(parameters.get("timeout") or TIMEOUT_DEFAULT),
    )


def _direction(parameters: Mapping[str, str]) -> Direction:
    match parameters.get("direction"):
        case None:
            return "forward" if "from" in parameters else "backward"
        case "forward":
            return "forward"
        case "backward":
            return "backward"
        case other:
            raise InvalidRequest(
                f"direction is forward or backward, not {other[:100]!r}", parameter="direction"
            )


def _timeout_ms(text: str) -> int:
    try:
        asked_ms = parse_duration_ms(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"timeout: {error.message}", parameter="timeout") from error
    if not 1 <= asked_ms <= TIMEOUT_MAX_MS:
        raise InvalidRequest(
            f"timeout is from 1ms to {TIMEOUT_MAX_MS // 1000}s; ask again with the cursor",
            parameter="timeout",
        )
    return asked_ms


def _number(
    given: Mapping[str, str], name: str, *, default: int | None, most: int, least: int = 1
) -> int | None:
    if not (text := given.get(name)):
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidRequest(
        f"{name} is a number from {least} to {most}, not {text[:100]!r}", parameter=name
    )
