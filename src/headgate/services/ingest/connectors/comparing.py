"""Finds in the log what a connector's origin doesn't have any more, for a snapshot that compares.

The log is looked through on a task of its own, while the stream goes on; what was handed in
meanwhile is looked at when that is through, and then every batch before it is handed in. So no key
is named that anything has been told of. Which keys those are: decide.connectors.snapshots.missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from headgate.decide.connectors.plan import ConnectorPlan
from headgate.decide.connectors.snapshots.missing_keys import Divide, Key, Last, MissingKeys
from headgate.errors import HeadgateError
from headgate.model.connector import Connector, Snapshot
from headgate.model.event import UNKNOWN_HEADER, Event, PartitionRef, Record
from headgate.ports.log import LogReader
from headgate.ports.origin import Listing, Origin
from headgate.services.ingest.connectors.handing_in import answered
from headgate.services.ingest.partitions import Partitions
from headgate.tasks import Helpers

READ = 2_000
"""Records at a time."""
DELETES = 500
"""Handed in at a time: each takes a look at the last record of its key."""
NEAR = 10_000
"""So many records may be left to look at when the stream waits for that."""
NOTHING = b"null"


def begin_marker(connector: Connector) -> str:
    """How the id begins of a marker that says where it began anew in a partition."""
    return f"bereft/{connector.name}/{connector.beginning}/"


class Comparing:
    """`begin` with each stream; `found` is asked again and again, from one task."""

    def __init__(self, connector: Connector, reader: LogReader, partitions: Partitions) -> None:
        self._connector = connector
        self._reader = reader
        self._partitions = partitions

    def begin(self, planned: ConnectorPlan, origin: Origin, helpers: Helpers) -> None:
        self._topics = list(planned.topics)
        self._leads = planned.topic_of
        self._origin = origin
        self._helpers = helpers
        self.forget()

    def forget(self) -> None:
        """Begin again with the next question."""
        self._looking: asyncio.Future[MissingKeys | HeadgateError] | None = None
        self._missing: MissingKeys | None = None
        self._divide: Divide | None = None
        self._share = 0
        self._looked: dict[PartitionRef, int] = {}
        self._left: deque[tuple[Key, Last]] = deque()

    @property
    def is_under_way(self) -> bool:
        """Something is known already, so every event has to be shown."""
        return self._missing is not None or self._looking is not None

    async def found(
        self, snapshot: Snapshot, listing: Listing, events: Sequence[Event]
    ) -> tuple[list[Event], bool] | None:
        """Some of the deletes, and whether there are no others; None: they have to be looked for.
        All that was told before `events` is in the log. Raises what reading the log does."""
        if self._missing is None:
            if self._looking is None:
                self._looking = self._helpers.start(
                    answered(self._looked_through(snapshot, listing))
                )
            if not self._looking.done():
                return None
            looked, self._looking = self._looking.result(), None
            if isinstance(looked, HeadgateError):
                raise looked
            await self._catch_up(looked)
            self._missing = looked
            self._left = deque(self._missing.found())
        assert self._divide is not None, "it was looked through"
        self._missing.since(events)
        some: list[Event] = []
        while self._left and len(some) < DELETES:
            key, last = self._left.popleft()
            if self._missing.has(key):
                some.append(await self._delete(key, last))
        if self._left:
            return some, False
        self._missing = None
        self._share += 1
        return some, self._share == self._divide.shares

    async def _looked_through(self, snapshot: Snapshot, listing: Listing) -> MissingKeys:
        refs = self._refs()
        if self._divide is None:
            self._divide = Divide(begin_marker(self._connector))
            for ref in refs:
                async for records in self._records(ref, 0, await self._head(ref)):
                    self._divide.look(records)
        divide = self._divide
        missing = MissingKeys(
            self._share,
            divide.shares,
            is_own=self._is_own,
            is_asked=lambda name: self._is_asked(name, snapshot, listing),
        )
        for is_since in (False, True):
            for ref in refs:
                head = await self._head(ref)
                bounds = divide.bounds(ref, head, is_since=is_since)
                async for records in self._records(ref, *bounds):
                    some = [one for one in records if divide.is_since(one) == is_since]
                    (missing.since if is_since else missing.before)(some)
                self._looked[ref] = head
        while await self._behind() > NEAR:
            await self._catch_up(missing)
        return missing

    async def _catch_up(self, missing: MissingKeys) -> None:
        """With what was handed in since it was looked through."""
        for ref in self._refs():
            head = await self._head(ref)
            async for records in self._records(ref, self._looked.get(ref, 0), head):
                missing.since(records)
            self._looked[ref] = head

    async def _behind(self) -> int:
        return sum([await self._head(ref) - self._looked.get(ref, 0) for ref in self._refs()])

    async def _records(
        self, ref: PartitionRef, after: int, upto: int
    ) -> AsyncIterator[list[Record]]:
        while after < upto:
            found = await self._reader.read(ref, after_seq=after, limit=min(READ, upto - after))
            if not found:
                return
            yield found
            after = found[-1].seq
            await asyncio.sleep(0)  # the stream has its turn

    async def _head(self, ref: PartitionRef) -> int:
        return (await self._reader.extent(ref)).head

    def _refs(self) -> list[PartitionRef]:
        """Of every version that there was. Raises UnknownTopic."""
        topics = [self._partitions.topic(name) for name in self._topics]
        return [ref for topic in topics for ref in topic.all_refs()]

    def _is_asked(self, collection: str, snapshot: Snapshot, listing: Listing) -> bool:
        if collection in listing.unread or self._leads(collection) is None:
            return False
        return not snapshot.collections or collection in snapshot.collections

    def _is_own(self, record: Record) -> bool:
        own = f"read/{self._connector.name}/"
        return record.event_id.startswith(own) or self._origin.has_made(record)

    async def _delete(self, key: Key, last: Last) -> Event:
        """With the state that the log knows, as far as it still has it."""
        collection, of = key
        found = await self._reader.read(last.ref, after_seq=last.seq - 1, limit=1)
        if not found or found[0].seq != last.seq:
            return Event("", NOTHING, of, "delete", collection)
        [record] = found
        is_partial = record.headers is not None and UNKNOWN_HEADER.encode() in record.headers
        headers = record.headers if is_partial else None
        document = record.document
        return Event("", document, of, "delete", collection, document, headers=headers)
