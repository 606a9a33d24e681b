"""How a connector's changes are cut before they are handed in: by what fits, and where one doesn't.

Invariant: nothing is left out and the order stays; each portion ends at the position of its last
change, and the last one where the whole ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headgate.model.event import Event


def portions(
    events: Sequence[Event], upto: str, *, most_events: int, most_bytes: int
) -> Iterator[tuple[Sequence[Event], str]]:
    """`events` in portions of at most so many, and so many bytes but for a single one, each with
    where it ends; there is always one, which may be empty."""
    begin, size = 0, 0
    for at, event in enumerate(events):
        weight = len(event.document) + len(event.earlier or b"")
        is_full = at - begin >= most_events or size + weight > most_bytes
        if is_full and at > begin:
            yield events[begin:at], events[at - 1].source or ""
            begin, size = at, 0
        size += weight
    yield events[begin:], upto


def up_to_oversized(
    events: Sequence[Event], *, most_bytes: int, is_wanted: Callable[[Event], bool]
) -> tuple[Sequence[Event], Event | None]:
    """The events before the first that is wanted and too large for the log, and that one."""
    for at, event in enumerate(events):
        largest = max(len(event.document), len(event.earlier or b""))
        if largest > most_bytes and is_wanted(event):
            return events[:at], event
    return events, None
