"""What flows: an event on its way in, the record it becomes, and where that record stands.

Invariant: a record is immutable from the moment the log gave it a `seq`. Documents stay raw JSON
bytes from the producer to the subscriber; only matching looks inside.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ProducedOp = Literal["insert", "update", "delete"]
"""What producers may say happened to a document."""
Op = Literal["insert", "update", "delete", "read", "truncate", "drop", "rename", "lost"]
"""What happened. Connectors alone say the rest: `read` is a document as it was found, `truncate`,
`drop` and `rename` are about a whole collection, and behind `lost` the origin can't tell what
happened before it."""
WHOLE_COLLECTION: frozenset[Op] = frozenset({"truncate", "drop", "rename"})
"""These have no key, and stand in every partition. Their document is null, except for a rename's:
`{"to": …}` with the collection's new name."""

UNKNOWN_HEADER = "headgate-unknown"
"""The header of a record whose document lacks fields that the origin didn't tell, because the
change left them as they were: a JSON array with their names."""
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a document may raise. It may be JSON all the same: with a number that no float can
represent, or nested more deeply than the decoder has room for."""
FIRST_SEQ = 1
"""Sequence numbers are dense and start here, so that 0 can mean "nothing yet"."""


class PartitionRef(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Event(msgspec.Struct, frozen=True, gc=False):
    """What a producer hands in. `event_id` is its idempotency key."""

    event_id: str
    document: bytes
    key: str | None = None
    op: Op = "insert"
    collection: str = ""
    earlier: bytes | None = None
    source: str | None = None
    headers: bytes | None = None
    """A JSON object of texts, as it was checked at the door; None where there are none."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event with its place in the log."""

    topic: str
    partition: int
    seq: int
    version: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    document: bytes
    earlier: bytes | None
    source: str | None
    time_ms: int
    headers: bytes | None = None


class Fence(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Who may write for a partition; of two writers the lower one is refused.

    `epoch` is taken anew by every start of a router and every move, `window` counts a router's
    windows, `attempt` counts Spark's attempts at one lane of one window. A coordinator that has
    forgotten everything may give out an epoch that somebody has: of two with the same numbers the
    one that comes second is refused, if the first has said its `claimant` (empty: it hasn't).
    """

    epoch: int
    window: int = 0
    attempt: int = 0
    claimant: str = ""

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.epoch, self.window, self.attempt

    def bars(self, other: Fence) -> bool:
        """Whether a partition that is held under this fence can't be claimed under `other`."""
        if self.numbers == other.numbers:
            return self.claimant not in ("", other.claimant)
        return self.numbers > other.numbers
