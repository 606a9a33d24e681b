"""What a connector reads: a database's stream of changes.

An origin gives every change a position, a text. Positions sort, byte by byte, like the changes, and
the same change has the same position whenever it is read; from a position any process can read on
behind it, for as long as the origin keeps its history. This is all that arriving once rests on, so
an adapter that can't promise it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from headgate.model.chunk import Chunk
from headgate.model.connector import Connector
from headgate.model.event import Event, Record

PATIENCE_S = 1.0


class Changes(msgspec.Struct, frozen=True):
    """What has happened since, in the origin's order; there may be nothing.

    Each event has its position in `source`. One without a key is about a whole collection, and goes
    to every partition. `position` is where the stream stands behind them: the last event's or, as
    time goes by, a later one. `time_ms` is when the last of them was made, by the origin's clock
    (0: unknown).
    """

    events: list[Event]
    position: str
    time_ms: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One thing that a start needs, whether it is there, and what to do where it isn't: a sentence.

    `warning`: it works without, with the consequence that `sentence` names.
    """

    what: str
    verdict: Literal["ok", "warning", "failed"]
    sentence: str = ""


class Standing(msgspec.Struct, frozen=True):
    """How the origin stands to a position: changes behind it (None: unknown, at most what the
    adapter counts), how far back its history goes, in milliseconds (None: unknown), how far back
    in it the position is (None: unknown), whether or not anything has changed since, and how much
    of it the origin keeps for this connector alone (None: unknown, or nothing). `warning`: what
    will go wrong there if nobody does anything about it, in a sentence."""

    behind: int | None = None
    history_ms: int | None = None
    age_ms: int | None = None
    held_bytes: int | None = None
    warning: str = ""


class Listing(msgspec.Struct, frozen=True):
    """What a snapshot can read: `collections`, each with about how many rows it has (None: nobody
    can tell). `unread` are there, too, and aren't what the connector reads, or have no rows:
    nothing is missing from them."""

    collections: Mapping[str, int | None]
    unread: frozenset[str] = frozenset()


class ChangeStream(Protocol):
    """An open stream. One caller of `next` at a time; rows may be read beside it."""

    @property
    def position(self) -> str:
        """Where it stands: everything up to there was returned, or had been before it was opened.
        Never empty."""

    async def next(self, patience_s: float = PATIENCE_S) -> Changes:
        """The next changes; waits about `patience_s` for one, then returns none.

        Raises OriginUnavailable when the origin is away (open it again at the last position),
        OriginHistoryLost when it no longer has the next change, ChangeTooLarge when it can't hand
        out the very next change: with its `position` and `what` it is, so that the reader may go on
        behind it. Of each batch everything is returned, or nothing.
        """

    def stored(self, position: str) -> None:
        """All up to there, which was returned, is in the log for good: an origin that keeps history
        for its reader need not keep that. Costs nothing, and never raises."""

    async def listing(self) -> Listing:
        """Raises OriginUnavailable and OriginRefused."""

    async def chunk(self, collection: str, behind: str) -> Chunk:
        """Rows of `collection` behind `behind` (a chunk's; empty: from its first on), each once, in
        an order that stays, as they are at one moment: no earlier than the stream stood when this
        was called. So many that they fit into memory. They have `op` read, a key as their changes
        do, and neither source nor id. One that is gone has none; where its stream tells of no such
        thing, and whether it is back nobody knows, the chunk says so (`is_away`).

        Raises like `listing`; ChangeTooLarge for a row that can't become an event, with `what` it
        is."""


class Origin(Protocol):
    """Opening one costs nothing: the first call connects. Every call ends within a bound."""

    async def check(self) -> list[Finding]:
        """Try everything that a start needs: address, rights, how the server is set up."""

    def open(
        self, after: str, *, begin_at: str, level: str = ""
    ) -> AbstractAsyncContextManager[ChangeStream]:
        """The changes behind the position `after`; where that is empty, from `begin_at` on
        (model.connector.Connector). `level` is the furthest that a partition has of it already
        (empty: nobody has anything): an origin that lacks that, because it was put back to an
        earlier state, has lost its history just as well. Raises like `next`, and OriginRefused for
        what nobody but an operator can mend."""

    async def standing(self, position: str) -> Standing:
        """Never raises: what can't be told is None."""

    async def release(self) -> None:
        """The connector was deleted: remove what it has made at the origin, which would keep
        history for it for ever. Nothing where there is nothing; raises OriginUnavailable and
        OriginRefused."""

    def has_made(self, record: Record) -> bool:
        """Is it what the connector made of a change? Nobody else's record is."""

    async def close(self) -> None: ...


OpenOrigin = Callable[[Connector], Origin]
"""What a connector of that type and those settings reads. Raises OriginRefused where nothing is
installed that could, and InvalidRequest for settings that are wrong."""
