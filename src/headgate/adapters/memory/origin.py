"""An origin in memory: changes with positions, for tests and simulations.

A test commits changes to a `MemoryHistory`, as a client to a database, and any number of origins
read them, in whatever process. Positions are numbers of a fixed width, so that they sort. History
can be dropped from its front; a change can be one that is too large to be handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from headgate.decide.connectors.whole_collection import concerned
from headgate.errors import ChangeTooLarge, OriginHistoryLost, OriginRefused, OriginUnavailable
from headgate.model.chunk import Chunk
from headgate.model.connector import BEGIN_NOW, Connector
from headgate.model.event import WHOLE_COLLECTION, Event, Record
from headgate.ports.origin import PATIENCE_S, Changes, Finding, Listing, Standing

BATCH = 100
WAIT_S = 0.5


def position_of(number: int) -> str:
    return f"{number:012d}"


class MemoryHistory:
    """What was committed, from `first` on; numbers begin with 1."""

    def __init__(self) -> None:
        self.changes: list[Event] = []
        self.first = 1
        self.head = 0
        self.is_away = False
        self.too_large: set[str] = set()
        """Positions of changes that can't be handed out."""
        self.stored = 0
        """Up to this number, a reader has said, all is in the log."""
        self.keeps_stored = True
        """Else nobody reads on from before that: it keeps history for its reader alone."""
        self.table: dict[tuple[str, str], bytes] = {}
        """What is there: by collection and key, the document."""
        self.made: set[str] = set()
        """The ids of all events that were ever told."""
        self.unread: set[str] = set()
        """Collections that are there and aren't read."""
        self.away: dict[str, int] = {}
        """Collections that aren't there the next so many times that rows are asked for."""
        self.released = 0
        """So often a connector that was deleted has let go of it."""

    def commit(self, *events: Event) -> None:
        """Each gets its position."""
        for event in events:
            self.head += 1
            self.changes.append(replace(event, source=position_of(self.head)))
            self.made.add(event.event_id)
            self._change(event)

    def forget(self, collection: str, key: str) -> None:
        """It goes, and nobody tells."""
        del self.table[collection, key]

    def there(self) -> dict[tuple[str, str], bytes]:
        """What is there now."""
        if self.is_away:
            raise OriginUnavailable("the origin can't be reached")
        return dict(self.table)

    def _change(self, event: Event) -> None:
        if event.op in WHOLE_COLLECTION:
            for name in concerned(event):
                self.table = {at: one for at, one in self.table.items() if at[0] != name}
        elif event.op == "delete":
            self.table.pop((event.collection, event.key or ""), None)
        elif event.key is not None:
            self.table[event.collection, event.key] = event.document

    def take_back(self, count: int) -> None:
        """As a copy of an earlier state would: the last ones were never committed."""
        del self.changes[-count:]
        self.head -= count

    def lose(self, up_to: int) -> None:
        """Forget the changes up to that number."""
        self.changes = [one for one in self.changes if (one.source or "") > position_of(up_to)]
        self.first = max(self.first, up_to + 1)

    def behind(self, number: int) -> list[Event]:
        if self.is_away:
            raise OriginUnavailable("the origin can't be reached")
        if number + 1 < self.first or not (self.keeps_stored or number >= self.stored):
            raise OriginHistoryLost(
                f"the origin has no changes before {self.first}, and {number + 1} comes next"
            )
        found = self.changes[number + 1 - self.first :]
        if found and found[0].source in self.too_large:
            raise ChangeTooLarge(
                "the next change is too large", position=found[0].source, what="a large change"
            )
        end = next((at for at, one in enumerate(found) if one.source in self.too_large), None)
        return found[:end]


class MemoryOrigin:
    """Implements ports.origin.Origin. `batch` says how many changes come at once at most."""

    def __init__(
        self,
        history: MemoryHistory,
        *,
        batch: Callable[[], int] = lambda: BATCH,
        wait_s: float = WAIT_S,
        rows: Callable[[], int] = lambda: BATCH,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._history = history
        self._batch = batch
        self._wait_s = wait_s
        self._rows = rows
        self._pause_s = pause_s

    async def check(self) -> list[Finding]:
        verdict, sentence = ("failed", "start it") if self._history.is_away else ("ok", "")
        return [Finding("connection", verdict, sentence)]  # type: ignore[arg-type]

    def open(
        self, after: str, *, begin_at: str, level: str = ""
    ) -> AbstractAsyncContextManager[MemoryStream]:
        return self._opened(after, begin_at, level)

    @asynccontextmanager
    async def _opened(self, after: str, begin_at: str, level: str) -> AsyncIterator[MemoryStream]:
        await asyncio.sleep(0)
        at = int(after or begin_at.removeprefix("position:").replace(BEGIN_NOW, "-1"))
        number = self._history.head if at < 0 else at
        self._history.behind(max(number, self._history.first - 1) if at < 0 else number)
        if level and int(level) > self._history.head:
            raise OriginHistoryLost(f"the origin has {self._history.head} changes, and not {level}")
        yield MemoryStream(
            self._history, number, self._batch, self._wait_s, self._rows, self._pause_s
        )

    async def standing(self, position: str) -> Standing:
        """A change a second."""
        await asyncio.sleep(0)
        if self._history.is_away or not position:
            return Standing()
        behind = self._history.head - int(position)
        return Standing(behind=behind, history_ms=60_000, age_ms=behind * 1_000)

    async def release(self) -> None:
        await asyncio.sleep(0)
        if self._history.is_away:
            raise OriginUnavailable("the origin can't be reached")
        self._history.released += 1

    def has_made(self, record: Record) -> bool:
        return record.event_id in self._history.made

    async def close(self) -> None:
        await asyncio.sleep(0)


class MemoryStream:
    """Implements ports.origin.ChangeStream. `rows` says how many of them come at once at most,
    `pause_s` how long it takes until rows are read, and again until they are brought."""

    def __init__(
        self,
        history: MemoryHistory,
        number: int,
        batch: Callable[[], int],
        wait_s: float,
        rows: Callable[[], int] = lambda: BATCH,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._history = history
        self._number = number
        self._batch = batch
        self._wait_s = wait_s
        self._rows = rows
        self._pause_s = pause_s

    @property
    def position(self) -> str:
        return position_of(self._number)

    async def next(self, patience_s: float = PATIENCE_S) -> Changes:
        await asyncio.sleep(0)
        events = self._history.behind(self._number)
        if not events:
            await asyncio.sleep(min(self._wait_s, patience_s))
            events = self._history.behind(self._number)
        some = events[: max(self._batch(), 1)]
        self._number += len(some)
        return Changes(some, self.position)

    def stored(self, position: str) -> None:
        self._history.stored = max(self._history.stored, int(position))

    async def listing(self) -> Listing:
        await asyncio.sleep(0)
        table = self._history.there()
        names = {name for name, _ in table}
        sizes = {name: sum(of == name for of, _ in table) for name in names}
        unread = frozenset(names & self._history.unread)
        return Listing({name: sizes[name] for name in names - unread}, unread)

    async def chunk(self, collection: str, behind: str) -> Chunk:
        await asyncio.sleep(self._pause_s())
        table, upto = self._history.there(), position_of(self._history.head)
        if times := self._history.away.get(collection, 0):
            self._history.away[collection] = times - 1
            return Chunk([], "", None, is_away=True)
        keys = sorted(key for name, key in table if name == collection and key > behind)
        some = keys[: max(self._rows(), 1)]
        rows = [
            Event("", table[collection, key], key, "read", collection, None, None) for key in some
        ]
        await asyncio.sleep(self._pause_s())
        return Chunk(rows, upto, some[-1] if len(some) < len(keys) else None)


def no_origin(connector: Connector) -> MemoryOrigin:
    """For nodes that read no connectors."""
    raise OriginRefused(f"nobody here can read what {connector.name} does")
