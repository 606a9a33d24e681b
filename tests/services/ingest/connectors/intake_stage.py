"""Two ingest nodes, a connector and its origin, all in memory, and a coordinator that is the test.

Stores fail at the stage's chance; nodes hear of a topology when the test says so, which is how a
former reader of a connector goes on beside its successor.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random

from msgspec.structs import replace

from headgate.adapters.memory.http import MemoryHttpListener, MemoryWeb
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import MemoryHistory, MemoryOrigin
from headgate.decide.delivery.retrying import Backoff
from headgate.decide.produce.placement import partition_of
from headgate.errors import OutcomeUnknown, StorageFailed
from headgate.model.connector import (
    Connector,
    ConnectorReport,
    ConnectorRoute,
    Snapshot,
    SnapshotReport,
)
from headgate.model.control.reports import ConnectorReports
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.event import Event, PartitionRef, Record
from headgate.model.intake import IntakeMark
from headgate.model.topology import FormerVersion, Node, Owner, Repartition, Topic, Topology
from headgate.ports.log import Taken
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.services.ingest.produce.writing import WritingOptions
from tests.services.ingest.doubles import ScriptedCoordinator, nothing_settled

ONE, TWO = "ingest-1", "ingest-2"
NAME = "shop"
ORDERS = Topic("orders", 4)
CONNECTOR = Connector(
    NAME, "mongodb", (ConnectorRoute("orders", "orders"),), {"uri": "x"}, beginning=1
)
OPTIONS = IntakeOptions(
    refresh_s=2.0,
    look_every_s=1.0,
    rest_look_every_s=3.0,
    events=7,
    backoff=Backoff(initial_s=0.05, max_s=1.0),
)


class FlakyWriter(MemoryLogWriter):
    """`fails` says how often a batch is refused, or taken without a word of it."""

    def __init__(self, stored: MemoryLog, chance: Random) -> None:
        super().__init__(stored)
        self._chance = chance
        self.fails = 0.0
        self.most_at_once = self._at_once = 0

    async def take_in(
        self,
        ref: PartitionRef,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
        now_ms: int,
    ) -> Taken:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(self._chance.random() * 0.02)
        self._at_once -= 1
        if self._chance.random() < self.fails:
            raise StorageFailed("the disk is full")
        taken = await super().take_in(ref, mark, events, version=version, now_ms=now_ms)
        if self._chance.random() < self.fails:
            raise OutcomeUnknown("the answer got lost")
        return taken


class Stage:
    def __init__(self, seed: int = 0) -> None:
        self.chance = Random(seed)
        self.web, self.log, self.machine = MemoryWeb(), MemoryLog(), ScriptedMachine()
        self.history = MemoryHistory()
        self.origin = MemoryOrigin
        """What nodes that begin to read get of it."""
        self.opened = 0
        """How often one of them did."""
        self.writing = WritingOptions()
        self.writers: dict[str, FlakyWriter] = {}
        self.coordinators: dict[str, ScriptedCoordinator] = {}
        self.nodes: dict[str, Ingest] = {}
        self.urls: dict[str, str] = {}
        self.generation = 0
        self.topic = ORDERS
        self.connector = CONNECTOR
        self.connector_at, self.connector_epoch = ONE, 1
        self.owners: dict[int, tuple[str, int]] = {}
        self._starts = 0

    # --- nodes -----------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        for name in names:
            self._starts += 1
            writer = self.writers[name] = FlakyWriter(self.log, self.chance)
            coordinator = self.coordinators[name] = ScriptedCoordinator()
            node = self.nodes[name] = Ingest(
                IngestOptions(
                    name,
                    f"start-{self._starts}",
                    intake=OPTIONS,
                    writing=self.writing,
                    stop_timeout_s=1.0,
                ),
                writer=writer,
                reader=MemoryLogReader(self.log),
                open_session=coordinator.open,
                settled=nothing_settled,
                http=MemoryHttpListener(self.web),
                calls=self.web.open_calls(),
                open_origin=self._open_origin,
                machine=self.machine,
            )
            self.urls[name] = await node.start()

    def _open_origin(self, _connector: Connector) -> MemoryOrigin:
        self.opened += 1
        return self.origin(
            self.history,
            batch=lambda: self.chance.randint(1, 20),
            wait_s=0.2,
            rows=lambda: self.chance.randint(1, 9),
            pause_s=lambda: self.chance.random() * 0.05,
        )

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    # --- what the coordinator says ---------------------------------------------------------------

    def topology(self) -> Topology:
        self.generation += 1
        for ref in self.topic.all_refs():
            self.owners.setdefault(ref.partition, ((ONE, TWO)[ref.partition % 2], 1))
        return Topology(
            self.generation,
            topics=(self.topic,),
            nodes=tuple(Node(name, "ingest", url) for name, url in self.urls.items()),
            logs=tuple(Owner(ref, *self.owners[ref.partition]) for ref in self.topic.all_refs()),
            connectors=(self.connector,) if self.connector_at else (),
            intakes=(Owner(PartitionRef(NAME, 0), self.connector_at, self.connector_epoch),)
            if self.connector_at
            else (),
        )

    async def publish(self, *names: str) -> None:
        """Tell these nodes how everything is now, or all of them, and wait until they do so."""
        said = self.topology()
        for name in names or tuple(self.nodes):
            self.coordinators[name].push(said)
        for name in names or tuple(self.nodes):
            await self._adopted(name, said.generation)

    async def _adopted(self, name: str, generation: int) -> None:
        async with asyncio.timeout(30):
            while not self._has_adopted(name, generation):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)

    def _has_adopted(self, name: str, generation: int) -> bool:
        return any(
            isinstance(one, AckTopology) and one.generation == generation and not one.unopened
            for one in self.coordinators[name].sent
        )

    def move_connector(self, to: str) -> None:
        self.connector_at, self.connector_epoch = to, self.connector_epoch + 1

    def reset_connector(self, begin_at: str, *, snapshot: bool = False) -> None:
        self.connector_epoch += 1
        self.connector = replace(
            self.connector,
            beginning=self.connector_epoch,
            begin_at=begin_at,
            begun=False,
            skip="",
            snapshots=(Snapshot(self.connector_epoch, compares=True),) if snapshot else (),
        )

    def take_snapshot(self, *collections: str) -> None:
        self.connector_epoch += 2
        snapshot = Snapshot(self.connector_epoch - 1, collections)
        self.connector = replace(self.connector, snapshots=(*self.connector.snapshots, snapshot))

    async def repartition(self, to: int) -> None:
        """Seal, fence, and go on with `to` partitions."""
        topic = self.topic
        self.topic = replace(topic, repartition=Repartition(to, "sealing", self.generation + 1))
        await self.publish()
        heads = {ref.partition: self.log.partition(ref).state.head for ref in self.topic.all_refs()}
        after = topic.after or (0,) * topic.partitions
        last = tuple(heads[number] for number in range(topic.partitions))
        original = topic.original or topic.partitions
        known = original + len(topic.begins)
        self.topic = Topic(
            topic.name,
            to,
            version=topic.version + 1,
            after=tuple(heads[number] for number in range(to)),
            former=(*topic.former, FormerVersion(topic.version, after, last)),
            original=original,
            begins=(*topic.begins, *(heads[number] for number in range(known, to))),
        )
        await self.publish()

    # --- what came of it -------------------------------------------------------------------------

    def report(self) -> ConnectorReport | None:
        """The last that the node which has the connector said of it."""
        said = reversed(self.coordinators[self.connector_at].sent)
        reports = (one for one in said if isinstance(one, ConnectorReports))
        return next((one for each in reports for one in each.reports), None)

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)

    async def until_state(self, state: str) -> ConnectorReport:
        await self.until(lambda: (said := self.report()) is not None and said.state == state)
        said = self.report()
        assert said is not None
        return said

    async def until_snapshot(
        self, condition: Callable[[SnapshotReport], bool], *, timeout_s: float = 120.0
    ) -> SnapshotReport:
        def said() -> SnapshotReport | None:
            report = self.report()
            return None if report is None else report.snapshot

        await self.until(
            lambda: (now := said()) is not None and condition(now), timeout_s=timeout_s
        )
        found = said()
        assert found is not None
        return found

    async def until_taken(self) -> None:
        """All snapshots that are wanted are done."""
        newest = max(one.id for one in self.connector.snapshots)
        await self.until_snapshot(lambda said: said.id == newest and said.done)

    def records(self) -> list[Record]:
        return [one for _, part in sorted(self.log.partitions.items()) for one in part.records]

    def taken(self) -> set[str]:
        return {one.source or "" for one in self.records()}

    def behind(self) -> set[str]:
        """What was committed and isn't in the log."""
        return {one.source or "" for one in self.history.changes} - self.taken()

    def judge(self, committed: Iterable[Event]) -> None:
        """Each change once, where its key belonged then, and each key's in the order of commits."""
        counts = {self.topic.version: self.topic.partitions}
        counts |= {one.version: len(one.last) for one in self.topic.former}
        found: dict[str, list[Record]] = defaultdict(list)
        for record in self.records():
            found[record.source or ""].append(record)
        by_key: dict[str | None, list[Event]] = defaultdict(list)
        for change in committed:
            records = found.pop(change.source or "", [])
            assert records, f"{change} is lost"
            if change.key is None:
                places = [(one.version, one.partition) for one in records]
                assert len(set(places)) == len(places), f"{change} is repeated"
                continue
            [record] = records
            place = partition_of(
                change.key, collection=change.collection, count=counts[record.version]
            )
            assert record.partition == place, f"{record} isn't where its key belongs"
            by_key[change.key].append(change)
        assert not found, f"nobody committed {found}"
        for key, changes in by_key.items():
            mine = [one for one in self.records() if one.key == key]
            mine.sort(key=lambda one: (one.version, one.seq))
            assert [one.source for one in mine] == [one.source for one in changes], key
            self._judge_whole(changes[0], counts)

    def _judge_whole(self, change: Event, counts: dict[int, int]) -> None:
        """What is about the whole collection, said once or again, stands before what of a key
        follows it."""
        places = {
            (version, partition_of(change.key or "", collection=change.collection, count=count))
            for version, count in counts.items()
        }
        mine = [one for one in self.records() if (one.version, one.partition) in places]
        mine = [one for one in mine if one.key in (change.key, None)]
        mine.sort(key=lambda one: (one.version, one.seq))
        newest = ""
        for one in mine:
            assert (one.source or "") > newest, f"{one} comes behind a change of {change.key}"
            newest = newest if one.key is None else one.source or ""


def change(number: int, *, keys: int = 6) -> Event:
    return Event(f"e{number}", b'{"n":%d}' % number, f"k{number % keys}", "update", "orders")
