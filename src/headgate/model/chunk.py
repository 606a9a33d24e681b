"""Some rows of a collection, as a snapshot reads them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.model.event import Event


class Chunk(msgspec.Struct, frozen=True):
    """`rows` of one collection as they were at one moment, each with key and document. `upto`: at
    this position, or behind it, the stream has told all that is in them. `behind` is where the next
    chunk begins; None: there is none. `is_away`: the collection wasn't there, and nobody has told
    that it went."""

    rows: Sequence[Event]
    upto: str
    behind: str | None
    is_away: bool = False
