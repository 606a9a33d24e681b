"""Which log partitions this node owns, and who owns the others.

Invariants: a partition is served only while the topology says it's ours and the store agrees, under
the epoch it was opened with; an older topology changes nothing. Never opens what another node owns.
A partition is sealed, for as long as the topology says so, before that topology is acknowledged.
A log that ends before what was settled or acknowledged of it has lost its history: it goes on
behind that, so that no seq is given out twice. What a deleted topic left is emptied under the epoch
of its deletion, also if another node had it open: a topic of the same name finds nothing of it, and
loses nothing to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

import structlog

from headgate import errors
from headgate.decide.delivery import lost_logs as history
from headgate.decide.log.lineage import is_same_version
from headgate.decide.produce.unknown_topic import SHOWN, unknown_topic
from headgate.model.control.to_coordinator import Sealed
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner, Topic, Topology
from headgate.ports.log import Extent, LogWriter
from headgate.services.ingest.produce.appends import Appends, OpenPartition
from headgate.services.ingest.settled import Settled
from headgate.telemetry import LogLine

log = structlog.get_logger()

FINISH_S = 2.0
"""For appends to a deleted topic to be over before it is tried again later to drop its records."""
EMPTY_S = 1.0
"""For what deleted topics left, at a time: a node that starts looks at all of it, and there may be
years of it."""


class Partitions:
    """`on_change` is called after every topology that was taken up; `keys_kept_s` is how long the
    log keeps idempotency keys.

    `closing`: nothing is going to change any more, so waiting for it is pointless.
    """

    def __init__(
        self,
        *,
        node_id: str,
        writer: LogWriter,
        appends: Appends,
        settled: Settled,
        keys_kept_s: float,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._node_id = node_id
        self._writer = writer
        self._appends = appends
        self._settled = settled
        self._keys_kept_s = keys_kept_s
        self._heard_s: dict[str, tuple[Topic, float]] = {}
        """Each topic as it was when this node first heard of its version, and when that was."""
        self._topology = Topology(generation=0)
        self._topics: dict[str, Topic] = {}
        self._owners: dict[PartitionRef, Owner] = {}
        self._open: dict[PartitionRef, OpenPartition] = {}
        self._changed = asyncio.Event()
        self._too_low: dict[PartitionRef, int] = {}
        self._unopened: set[PartitionRef] = set()
        self._emptied: set[Owner] = set()
        self._unwilling: set[Owner] = set()
        """Those that couldn't be emptied the last time."""
        self._unemptied: dict[PartitionRef, int] = {}
        """Those of deleted topics that the store has under a higher epoch, and which."""
        self.undropped: set[str] = set()
        """The deleted topics of which not everything could be dropped."""
        self._stores_changed: set[PartitionRef] = set()
        self.closing = False

    # --- what is known ---------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._topology.generation

    @property
    def topology(self) -> Topology:
        return self._topology

    def too_low(self) -> list[tuple[PartitionRef, int]]:
        """Partitions that are ours, or that we should empty, but the store has seen a higher epoch,
        and which."""
        lost = {ref: one.lost_to for ref, one in self._open.items() if one.lost}
        return sorted((lost | self._too_low | self._unemptied).items())

    def unopened(self) -> tuple[PartitionRef, ...]:
        """The partitions that are ours and can't be opened now."""
        return tuple(sorted(self._unopened))

    def mine(self) -> list[PartitionRef]:
        """The partitions that this node has open, and those that it should have and couldn't
        open."""
        return sorted({*self._open, *self._unopened, *self._too_low})

    def owns(self) -> tuple[Owner, ...]:
        return tuple(partition.owner for partition in self.opened())

    def sealed(self) -> tuple[Sealed, ...]:
        """The partitions that take no appends, as the topology wants it, and where each ends."""
        return tuple(
            Sealed(one.owner.ref, one.owner.epoch, one.head)
            for one in self.opened()
            if one.sealed and one.owner.ref not in self._unopened
        )

    def heads(self) -> tuple[tuple[PartitionRef, int], ...]:
        return tuple((partition.owner.ref, partition.head) for partition in self.opened())

    def earliest(self) -> tuple[tuple[PartitionRef, int], ...]:
        """The first seq of which something is still there, of topics that were repartitioned. The
        idempotency keys of former versions count: they outlive records that retention takes early,
        and retries are looked up there (former_keys.py)."""
        over_s = asyncio.get_running_loop().time() - self._keys_kept_s
        has_keys = {
            topic.name: self._heard_s[topic.name][1] > over_s
            for topic in self._topics.values()
            if topic.former
        }
        return tuple(
            (one.owner.ref, 0 if has_keys[one.owner.ref.topic] else one.earliest)
            for one in self.opened()
            if one.owner.ref.topic in has_keys
        )

    def opened(self) -> list[OpenPartition]:
        return [self._open[ref] for ref in sorted(self._open) if not self._open[ref].lost]

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None and self._topology.generation == 0:
            # A node that was just started; a producer that is told "no such topic" would give up.
            raise errors.NotNow(
                "this ingest node doesn't know the topics yet; try again", topic=name
            )
        if topic is None:
            raise unknown_topic(name, self._topics)
        return topic

    async def heard_of(self, name: str, *, timeout_s: float) -> Topic:
        """The topic, which the caller knows already; NotNow where this node doesn't by then."""
        until_s = asyncio.get_running_loop().time() + timeout_s
        while name not in self._topics and name not in self._topology.deleted:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0 or self.closing:
                raise errors.NotNow(
                    f"this ingest node has not heard of topic {name[:SHOWN]} yet; nothing was "
                    "written, try again",
                    topic=name[:SHOWN],
                )
            await self.change(timeout_s=left_s)
        return self.topic(name)

    def get(self, ref: PartitionRef) -> OpenPartition | None:
        """`ref`, if it can be appended to here."""
        partition = self._open.get(ref)
        return None if partition is None or partition.lost else partition

    def is_well(self, ref: PartitionRef) -> bool:
        """Is `ref` open here, and could be opened again the last time it had to be?"""
        return self.get(ref) is not None and ref not in self._unopened

    def of_topic(self, topic: Topic) -> dict[int, OpenPartition]:
        found = ((ref.partition, self.get(ref)) for ref in topic.refs())
        return {number: partition for number, partition in found if partition is not None}

    def saw(self, ref: PartitionRef, seqs: Iterable[int]) -> None:
        """Records that were read back move the head, like those that were just written."""
        partition = self._open.get(ref)
        if partition is not None:
            partition.saw(*seqs, 0)

    def peer_url(self, ref: PartitionRef) -> str:
        """The address of the other node that owns `ref`; empty when there is none, or it's us."""
        owner = self._owners.get(ref)
        return "" if owner is None or owner.node_id == self._node_id else self._url_of(owner)

    def redirect(self, topic: Topic) -> errors.StaleVersion:
        """How to route keyed events to `topic` now."""
        owners = {
            str(ref.partition): url
            for ref in topic.refs()
            if (owner := self._owners.get(ref)) and (url := self._url_of(owner))
        }
        return errors.StaleVersion(
            f"{topic.name} has {topic.partitions} partitions under version {topic.version}, and "
            "these events don't belong here: place them anew",
            version=topic.version,
            partitions=topic.partitions,
            owners=owners,
        )

    def _url_of(self, owner: Owner) -> str:
        node = self._topology.node(owner.node_id)
        return "" if node is None else node.url

    async def change(self, *, timeout_s: float) -> None:
        """Wait for the next topology, or the end, for a while."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass  # The caller looks for itself whether it has what it needs.

    def close(self) -> None:
        self.closing = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- what changes ----------------------------------------------------------------------------

    async def adopt(self, topology: Topology) -> bool:
        """Serve what `topology` gives to this node and nothing else; True once that is so.

        False means that a partition could not be opened; calling again tries again, also to empty
        what is `undropped`.
        """
        if topology.generation < self.generation:
            return True
        mine = {owner.ref: owner for owner in topology.logs if owner.node_id == self._node_id}
        leaving = [ref for ref in self._open if ref not in mine]
        self._topology = topology
        self._topics = {topic.name: topic for topic in topology.topics}
        self._note_versions()
        self._owners = {owner.ref: owner for owner in topology.logs}
        for ref in leaving:
            del self._open[ref]
        self._too_low.clear()
        self._unopened &= mine.keys()
        news = [owner for owner in mine.values() if self._is_news(owner)]
        if news:
            await self._settled.read()
        opened = await asyncio.gather(*map(self._open_one, news))
        await self._empty(topology.emptied)
        self._tell()
        self.on_change()
        return all(opened)

    def _note_versions(self) -> None:
        known, now_s = self._heard_s, asyncio.get_running_loop().time()
        self._heard_s = {
            name: known[name]
            if name in known and is_same_version(known[name][0], topic)
            else (topic, now_s)
            for name, topic in self._topics.items()
        }

    def _version(self, ref: PartitionRef) -> int:
        topic = self._topics.get(ref.topic)
        return 1 if topic is None else topic.version

    def _is_sealed(self, ref: PartitionRef) -> bool:
        """Whether it is to take no appends: its topic is about to be repartitioned, or nothing is
        placed there any more, or yet."""
        topic = self._topics.get(ref.topic)
        if topic is None:
            return False
        under_way = topic.repartition
        is_sealing = under_way is not None and under_way.phase == "sealing"
        return is_sealing or ref.partition >= topic.partitions

    def _is_news(self, owner: Owner) -> bool:
        known = self._open.get(owner.ref)
        if known is None or known.owner.epoch < owner.epoch:
            return True
        is_newer = known.version < self._version(owner.ref)
        return is_newer or known.sealed != self._is_sealed(owner.ref)

    async def _open_one(self, owner: Owner) -> bool:
        ref, version, sealed = owner.ref, self._version(owner.ref), self._is_sealed(owner.ref)
        known = self._open.get(ref)
        acknowledged = 0 if known is None else known.head
        try:
            extent = await self._writer.open(ref, epoch=owner.epoch, version=version, sealed=sealed)
            extent = await self._behind_what_is_lost(ref, extent, acknowledged=acknowledged)
        except errors.Fenced as error:
            # A newer owner has it, and the topology that says so is on its way; or the
            # coordinator has forgotten how far epochs had come, and must hear it.
            log.warning(LogLine.FENCED, partition=str(ref), epoch=owner.epoch)
            self._open.pop(ref, None)
            self._too_low[ref] = max(error.epoch, owner.epoch)
            return True
        except errors.HeadgateError as error:
            log.error(LogLine.APPEND_FAILED, partition=str(ref), reason=str(error))
            self._unopened.add(ref)
            return False
        self._unopened.discard(ref)
        self._stores_changed.discard(ref)
        log.info(LogLine.PARTITION_OPENED, partition=str(ref), epoch=owner.epoch)
        if known is None:
            opened_s = asyncio.get_running_loop().time()
            known = self._open[ref] = OpenPartition(
                owner, version, extent.head, opened_s, extent.head, sealed=sealed
            )
        else:
            # The same value, because appends under way still move its head.
            known.owner, known.version, known.lost = owner, version, False
            known.sealed = sealed
            known.saw(extent.head)
        known.earliest = extent.earliest
        return True

    def store_changed(self, ref: PartitionRef, error: errors.StoreChanged) -> None:
        """The store of `ref` has refused: it takes nothing until it is opened again."""
        self.saw(ref, [error.given_out])
        self._stores_changed.add(ref)

    async def open_again(self) -> None:
        """Open what has to be opened again, all at once: a store that is away holds each of them.

        What fails is tried again the next time.
        """
        self._stores_changed &= self._open.keys()
        again = [self._open[ref].owner for ref in sorted(self._stores_changed)]
        if again:
            await self._settled.read()
            await asyncio.gather(*map(self._open_one, again))

    async def look_back(self) -> None:
        """Look again at partitions that were opened while it wasn't known how far they are settled.

        A partition that has taken records since stays as it is: behind a new head they would never
        be read. The lane that reads it reports what is lost.
        """
        for partition in self.opened():
            ref, head = partition.owner.ref, partition.found_head
            if partition.head != head:
                continue
            try:
                extent = await self._behind_what_is_lost(ref, Extent(head + 1, head))
            except errors.HeadgateError as error:
                if isinstance(error, errors.StoreChanged):
                    self.store_changed(ref, error)
                log.error(LogLine.APPEND_FAILED, partition=str(ref), reason=str(error))
            else:
                partition.saw(extent.head)

    async def _behind_what_is_lost(
        self, ref: PartitionRef, found: Extent, *, acknowledged: int = 0
    ) -> Extent:
        settled = self._settled.known.get(ref, 0)
        lost = history.lost(ref, head=found.head, settled=settled, acknowledged=acknowledged)
        if lost is None:
            return found
        to_head = history.next_head(max(settled, acknowledged))
        moved = await self._writer.move_on(ref, from_head=found.head, to_head=to_head)
        if moved.head == to_head:
            log.error(LogLine.HISTORY_LOST, partition=str(ref), error=lost.message)
        return moved

    async def _empty(self, wanted: Collection[Owner]) -> None:
        """Drop what deleted topics left, each once, as much as there is time for.

        All of it, not only what was open here: the nodes that had the other partitions open may be
        gone. A partition that isn't dropped yet keeps only a topic of its own name waiting, and one
        that can't be dropped doesn't keep the others.
        """
        self._unemptied.clear()
        self.undropped.clear()
        for known in (self._emptied, self._unwilling):
            known.intersection_update(wanted)
        left = [nobodys for nobodys in wanted if nobodys not in self._emptied]
        left.sort(key=self._unwilling.__contains__)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + EMPTY_S
        for nobodys in left:
            if loop.time() < until_s:
                await self._empty_one(nobodys)
            else:
                self.undropped.add(nobodys.ref.topic)

    async def _empty_one(self, nobodys: Owner) -> None:
        ref, epoch = nobodys.ref, nobodys.epoch
        self._unwilling.add(nobodys)
        try:
            async with asyncio.timeout(FINISH_S):
                await self._appends.finished(ref)
            await self._writer.drop_records(ref, epoch=epoch)
        except TimeoutError:
            log.error(LogLine.APPEND_FAILED, partition=str(ref), reason="its last append hangs")
            self.undropped.add(ref.topic)
        except errors.Fenced as error:
            # The topic is back, and nothing in there is the former one's. A coordinator that has
            # forgotten so must hear it.
            log.warning(LogLine.FENCED, partition=str(ref), epoch=epoch)
            self._unemptied[ref] = max(error.epoch, epoch)
        except errors.HeadgateError as error:
            log.error(LogLine.APPEND_FAILED, partition=str(ref), reason=str(error))
            self.undropped.add(ref.topic)
        else:
            self._emptied.add(nobodys)
            self._unwilling.discard(nobodys)
