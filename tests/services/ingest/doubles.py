"""Stand-ins around an ingest node: a log that fails on demand, and the coordinator's end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.http import MemoryHttpCalls, MemoryWeb
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.errors import OutcomeUnknown, PeerUnreachable
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult
from headgate.model.control.from_coordinator import FromCoordinator, PushTopology, Welcome
from headgate.model.control.to_coordinator import ToCoordinator
from headgate.model.event import Event, PartitionRef, Record
from headgate.model.position import Position
from headgate.model.topology import Node, Owner, Topic, Topology
from headgate.ports.control import HelloSource
from headgate.ports.log import Appended, Extent, LogWriter, Retention
from headgate.ports.machine import Machine
from headgate.services.ingest.produce.handing_on import Incoming
from headgate.services.ingest.produce.peers import ProducePeers
from headgate.services.ingest.produce.writing import Writing, WritingOptions
from headgate.services.ingest.settled import Settled, SettledPositions

NODE = "ingest-1"


def topology(generation: int, *topics: Topic, deleted: tuple[Topic, ...] = ()) -> Topology:
    """Every partition belongs to NODE, under epoch 1; deletions took epoch 2."""
    return Topology(
        generation,
        topics=topics,
        logs=tuple(Owner(ref, NODE, 1) for topic in topics for ref in topic.all_refs()),
        deleted=tuple(topic.name for topic in deleted),
        emptied=tuple(Owner(ref, "", 2) for topic in deleted for ref in topic.all_refs()),
    )


def shared_topology(
    generation: int, topic: Topic, owners: Sequence[str], urls: dict[str, str], *, epoch: int = 1
) -> Topology:
    """Partition N of `topic` belongs to the Nth of `owners`."""
    return Topology(
        generation,
        topics=(topic,),
        nodes=tuple(Node(name, "ingest", url) for name, url in urls.items()),
        logs=tuple(
            Owner(ref, owner, epoch) for ref, owner in zip(topic.refs(), owners, strict=True)
        ),
    )


class FaultyLogWriter(MemoryLogWriter):
    """A log in memory. What goes wrong is set up by the test, per partition:

    `gates` are waited for and `delays_s` pass before an append; `failures` are raised instead;
    `lost_answers` are raised after it was written; `find_failures` are raised by `find`. No
    answer ever comes from those that are `mute`, where an append is written (True) or not (False).
    `drop_gates` are waited for before a drop, and `drop_failures` raised instead.
    """

    def __init__(self, stored: MemoryLog | None = None) -> None:
        super().__init__(stored)
        self.dropped: list[tuple[PartitionRef, int]] = []
        """With the epochs under which they were to be."""
        self.retained: list[tuple[PartitionRef, Retention, dict[str, int]]] = []
        self.failures: dict[PartitionRef, Exception] = {}
        self.lost_answers: dict[PartitionRef, Exception] = {}
        self.open_failures: dict[PartitionRef, Exception] = {}
        self.find_failures: dict[PartitionRef, Exception] = {}
        self.retain_failures: dict[PartitionRef, Exception] = {}
        self.drop_failures: dict[PartitionRef, Exception] = {}
        self.drop_gates: dict[PartitionRef, asyncio.Event] = {}
        self.drop_takes_s = 0.0
        self.finds: list[PartitionRef] = []
        self.opened: dict[PartitionRef, int] = {}
        """Under which epoch each was opened last."""
        self.mute: dict[PartitionRef, bool] = {}
        self.gates: dict[PartitionRef, asyncio.Event] = {}
        self.delays_s: dict[PartitionRef, float] = {}
        self.started: defaultdict[PartitionRef, asyncio.Event] = defaultdict(asyncio.Event)
        self.attempts: list[tuple[PartitionRef, int]] = []
        self.closed = False
        self._news = asyncio.Condition()
        self._handed_in: defaultdict[PartitionRef, set[asyncio.Future[Any]]] = defaultdict(set)

    @property
    def records(self) -> defaultdict[PartitionRef, list[Record]]:
        stored = self.stored.partitions.items()
        return defaultdict(list, {ref: list(partition.records) for ref, partition in stored})

    async def seal(self, ref: PartitionRef, *, sealed: bool = True) -> None:
        """As its owner would."""
        await MemoryLogWriter.open(self, ref, epoch=self.opened[ref], sealed=sealed)

    async def open(
        self, ref: PartitionRef, *, epoch: int, version: int = 1, sealed: bool = False
    ) -> Extent:
        _fail(self.open_failures, ref)
        self.opened[ref] = epoch
        return await super().open(ref, epoch=epoch, version=version, sealed=sealed)

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        ended = asyncio.get_running_loop().create_future()
        self._handed_in[ref].add(ended)
        self.attempts.append((ref, len(events)))
        self.started[ref].set()
        await self._tell()
        try:
            if ref in self.gates:
                await self.gates[ref].wait()
            if ref in self.delays_s:
                await asyncio.sleep(self.delays_s[ref])
            if self.mute.get(ref, True):
                _fail(self.failures, ref)
                appended = await super().append(ref, events, version=version, now_ms=now_ms)
                _fail(self.lost_answers, ref)
        finally:
            self._handed_in[ref].discard(ended)
            ended.set_result(None)
            await self._tell()
        if ref in self.mute:
            await asyncio.Event().wait()
        return appended

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` holds; looks when an append begins or ends, or a drop begins."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(condition), 30)

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        self.finds.append(ref)
        for ended in list(self._handed_in[ref]):
            await asyncio.shield(ended)
        _fail(self.find_failures, ref)
        return await super().find(ref, event_ids)

    async def retain(
        self, ref: PartitionRef, retention: Retention, *, settled: int, ids_ms: int, now_ms: int
    ) -> Extent:
        called = {"settled": settled, "ids_ms": ids_ms, "now_ms": now_ms}
        self.retained.append((ref, retention, called))
        _fail(self.retain_failures, ref)
        return await super().retain(ref, retention, **called)

    async def drop_records(self, ref: PartitionRef, *, epoch: int) -> None:
        self.dropped.append((ref, epoch))
        await self._tell()
        if ref in self.drop_gates:
            await self.drop_gates[ref].wait()
        if self.drop_takes_s:
            await asyncio.sleep(self.drop_takes_s)
        _fail(self.drop_failures, ref)
        await super().drop_records(ref, epoch=epoch)

    async def close(self) -> None:
        await super().close()
        self.closed = True


def _fail(failures: dict[PartitionRef, Exception], ref: PartitionRef) -> None:
    if ref in failures:
        raise failures[ref]


class NoPeers(ProducePeers):
    """Other ingest nodes, none of which answers."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(MemoryHttpCalls(MemoryWeb()))
        self.error = error or PeerUnreachable("nothing answers")
        self.asked: list[tuple[str, int]] = []

    async def produce(
        self, url: str, topic: str, request: ProduceRequest, *, hops: int, timeout_s: float
    ) -> ProduceAnswer:
        self.asked.append((url, hops))
        raise self.error


async def nothing_settled() -> dict[PartitionRef, Position]:
    return {}


class World:
    """Everything between a produce request and the log, without HTTP and a coordinator."""

    def __init__(
        self,
        writer: LogWriter,
        *,
        settled: SettledPositions = nothing_settled,
        peers: ProducePeers | None = None,
        machine: Machine | None = None,
        node_id: str = NODE,
        **options: Any,
    ) -> None:
        self.settled = Settled(settled)
        self.reader = MemoryLogReader(getattr(writer, "stored", None))
        self.writing = Writing(
            WritingOptions(**options),
            node_id=node_id,
            writer=writer,
            reader=self.reader,
            settled=self.settled,
            peers=peers or NoPeers(),
            machine=machine or ScriptedMachine(begins_ms=0),
        )
        self.partitions = self.writing.partitions

    async def adopt(self, adopted: Topology) -> bool:
        return await self.partitions.adopt(adopted)

    async def write(
        self, topic: Topic, events: Sequence[Event], *, timeout_s: float, **rest: Any
    ) -> list[ProduceResult]:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        incoming = Incoming(topic.name, events, deadline_s, **rest)
        return await self.writing.produce.write(incoming)

    async def drain(self, *, timeout_s: float) -> bool:
        return await self.writing.appends.drain(timeout_s=timeout_s)


def disk_failed_late() -> OutcomeUnknown:
    return OutcomeUnknown("the disk failed so late that nobody can tell")


class ScriptedCoordinator:
    """A coordinator whose side of the stream is the test."""

    def __init__(self) -> None:
        self.sent: list[ToCoordinator] = []
        self._news = asyncio.Event()
        self._session: MemoryControlSession | None = None

    def open(self, hello: HelloSource) -> MemoryControlSession:
        self._session = MemoryControlSession(hello, self._hear)
        self.connect()
        return self._session

    def connect(self) -> None:
        self.session.connect()
        self.say(Welcome("coordinator-1", 30_000, 5_000))

    @property
    def session(self) -> MemoryControlSession:
        """The node's."""
        assert self._session is not None, "the node hasn't opened one yet"
        return self._session

    def say(self, message: FromCoordinator) -> None:
        self.session.push(message)

    def push(self, pushed: Topology) -> None:
        self.say(PushTopology(pushed))

    async def heard(self, message: ToCoordinator) -> None:
        """Waits until the node has sent `message`."""
        async with asyncio.timeout(30):
            while message not in self.sent:
                self._news.clear()
                await self._news.wait()

    def _hear(self, message: ToCoordinator) -> None:
        self.sent.append(message)
        self._news.set()
