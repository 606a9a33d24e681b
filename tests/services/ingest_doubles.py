"""Stand-ins around an ingest node: a log that fails on demand, and the coordinator's end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

from headgate.errors import Fenced
from headgate.model.control import FromCoordinator, PushTopology, ToCoordinator
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Owner, Topic, Topology
from headgate.ports.control import HelloSource
from headgate.ports.log import Appended, Extent

NODE = "ingest-1"


def topology(generation: int, *topics: Topic, deleted: tuple[str, ...] = ()) -> Topology:
    """Every partition belongs to NODE, under epoch 1."""
    owners = tuple(Owner(ref, NODE, 1) for topic in topics for ref in topic.refs())
    return Topology(generation, topics=topics, logs=owners, deleted=deleted)


class MemoryLogWriter:
    """Keeps events in lists. `failures` are raised, `gates` are waited for, before an append."""

    def __init__(self) -> None:
        self.records: defaultdict[PartitionRef, list[Event]] = defaultdict(list)
        self.epochs: dict[PartitionRef, int] = {}
        self.dropped: list[PartitionRef] = []
        self.failures: dict[PartitionRef, Exception] = {}
        self.open_failures: dict[PartitionRef, Exception] = {}
        self.gates: dict[PartitionRef, asyncio.Event] = {}
        self.started: defaultdict[PartitionRef, asyncio.Event] = defaultdict(asyncio.Event)
        self.closed = False

    async def open(self, ref: PartitionRef, *, epoch: int) -> Extent:
        if ref in self.open_failures:
            raise self.open_failures[ref]
        if epoch < self.epochs.get(ref, 0):
            raise Fenced(f"{ref} is at epoch {self.epochs[ref]}")
        self.epochs[ref] = epoch
        return Extent(1, len(self.records[ref]))

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        self.started[ref].set()
        if ref in self.gates:
            await self.gates[ref].wait()
        if ref in self.failures:
            raise self.failures[ref]
        known = {event.event_id: seq for seq, event in enumerate(self.records[ref], 1)}
        appended = []
        for event in events:
            if event.event_id in known:
                appended.append(Appended(known[event.event_id], repeated=True))
                continue
            self.records[ref].append(event)
            appended.append(Appended(len(self.records[ref])))
        return appended

    async def drop_records(self, ref: PartitionRef) -> None:
        self.dropped.append(ref)

    async def close(self) -> None:
        self.closed = True


class ScriptedSession:
    """A control session whose other end is the test."""

    def __init__(self) -> None:
        self.hello: HelloSource | None = None
        self.connected = True
        self.closed = False
        self.sent: list[ToCoordinator] = []
        self._news = asyncio.Condition()
        self._incoming: asyncio.Queue[FromCoordinator | None] = asyncio.Queue()

    def open(self, hello: HelloSource) -> ScriptedSession:
        self.hello = hello
        return self

    async def send(self, message: ToCoordinator) -> bool:
        async with self._news:
            self.sent.append(message)
            self._news.notify_all()
        return True

    async def messages(self) -> AsyncIterator[FromCoordinator]:
        while (message := await self._incoming.get()) is not None:
            yield message

    async def close(self) -> None:
        self.closed = True
        self._incoming.put_nowait(None)

    def say(self, message: FromCoordinator) -> None:
        self._incoming.put_nowait(message)

    def push(self, pushed: Topology) -> None:
        self.say(PushTopology(pushed))

    async def heard(self, message: ToCoordinator) -> None:
        """Waits until the node has sent `message`."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: message in self.sent), 10)
