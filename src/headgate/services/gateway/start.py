"""Where a subscription begins: `now`, `earliest`, or positions such as `0:15,1:22`.

Invariant: what comes out of `starts_after` is, for every partition, the seq after which delivery
begins, and the log has everything after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headgate import errors
from headgate.ports.log import Extent

Start = Literal["now", "earliest"] | dict[int, int]
"""A dict gives, per partition, the first seq that is wanted."""

MAX_DIGITS = 18
"""Of a partition or a seq: stays within 64 bits, and int() of it is cheap."""


def parse_start(text: str) -> Start:
    """The value of `from`."""
    if text in ("", "now"):
        return "now"
    if text == "earliest":
        return "earliest"
    wanted: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, seq = part.strip().partition(":")
        if not (colon and _is_number(partition) and _is_number(seq) and int(seq) >= 1):
            raise errors.InvalidRequest(
                f"from={text[:100]} is not understood: write now, earliest or "
                "PARTITION:SEQ,PARTITION:SEQ with seqs from 1",
                parameter="from",
            )
        if int(partition) in wanted:
            raise errors.InvalidRequest(
                f"from names partition {partition} twice; name it once", parameter="from"
            )
        wanted[int(partition)] = int(seq)
    return wanted


def parse_last_event_id(text: str) -> Start:
    """The positions vector a client saw last: it wants what comes after each of them."""
    wanted: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, seq = part.strip().partition(":")
        if not (colon and _is_number(partition) and _is_number(seq)):
            raise errors.InvalidRequest(
                f"Last-Event-ID {text[:100]} is not a positions vector like 0:15,1:22",
                parameter="Last-Event-ID",
            )
        wanted[int(partition)] = int(seq) + 1
    return wanted


def starts_after(start: Start, extents: Mapping[int, Extent], topic: str) -> dict[int, int]:
    """The seq after which each partition begins; partitions that aren't named begin now."""
    if isinstance(start, str) and start == "now":
        return {partition: extent.head for partition, extent in extents.items()}
    if isinstance(start, str):
        return {partition: extent.earliest - 1 for partition, extent in extents.items()}
    for partition, seq in start.items():
        extent = extents.get(partition)
        if extent is None:
            raise errors.InvalidRequest(
                f"topic {topic} has no partition {partition}: it has 0 to {len(extents) - 1}",
                parameter="from",
                partition=partition,
            )
        if seq > extent.head + 1:
            raise errors.InvalidRequest(
                f"partition {partition} of {topic} ends at seq {extent.head}, so {seq} lies "
                "beyond its end; begin there or earlier",
                parameter="from",
                partition=partition,
                head=extent.head,
            )
    return {
        partition: max(start[partition], extent.earliest) - 1 if partition in start else extent.head
        for partition, extent in extents.items()
    }


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
