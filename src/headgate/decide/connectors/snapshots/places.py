"""Where the rows of a snapshot stand in the stream: behind one of its positions, before the next.

A **place** is a position with something behind it, so that it sorts where it belongs: no position
of an origin begins with another one. It is the `source` of a record and is stored like a position;
before the origin is asked for it, what was added is taken away (`of_stream`).

Invariant: no place is given out twice. It holds the connector's epoch, under which one reader
counts its chunks.
"""

from __future__ import annotations

_ADDED = "+"


def place_of(position: str, *, epoch: int, chunk: int, row: int) -> str:
    """Of the row with that number, counted from 1, in that chunk of that epoch."""
    return f"{position}{_ADDED}{epoch:012x}{chunk:08x}{row:06x}"


def places_of(position: str, *, epoch: int, chunk: int, rows: int) -> list[str]:
    """Of all rows of that chunk, so many."""
    begun = f"{position}{_ADDED}{epoch:012x}{chunk:08x}"
    return [f"{begun}{row:06x}" for row in range(1, rows + 1)]


def of_stream(place: str) -> str:
    """The position behind which `place` stands; a position is what it is."""
    return place.partition(_ADDED)[0]
