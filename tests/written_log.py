"""A log in memory that the test writes, and to which it does what producers, retention and a
failing disk do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from headgate.adapters.log.appending import AppendRequest
from headgate.adapters.memory.log import MemoryLog, MemoryPartition
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.errors import StorageFailed
from headgate.model.event import Event, Op, PartitionRef, Record
from headgate.ports.log import Extent

TOPIC = "flights"
EPOCH = 1


class WrittenLog(MemoryLogReader):
    """The reader of it; who appends needs no writer. Reads fail while `failing` is set, of one
    partition while it is `damaged`, of one record while it is in `damaged_seqs`, or where they are
    of more than `at_a_time`; they wait while `gate` is there and not open. `asked` says after which
    seqs."""

    def __init__(self, stored: MemoryLog | None = None) -> None:
        super().__init__(stored)
        self.reads = 0
        self.failing: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.damaged: dict[PartitionRef, Exception] = {}
        self.damaged_seqs: dict[PartitionRef, set[int]] = {}
        self.asked: list[int] = []
        self.at_a_time = 1_000_000
        self.read_takes_s = 0.0

    # --- the writer's side -----------------------------------------------------------------------

    def append(
        self,
        document: object,
        *,
        partition: int = 0,
        topic: str = TOPIC,
        key: str | None = None,
        op: Op = "insert",
        earlier: object | None = None,
        time_ms: int | None = None,
        version: int = 1,
        collection: str = "",
        headers: dict[str, str] | None = None,
        event_id: str = "",
    ) -> Record:
        """`event_id`: another one than it would have by its place."""
        ref = PartitionRef(topic, partition)
        stored = self._opened(ref, version)
        raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
        before = None if earlier is None else msgspec.json.encode(earlier)
        seq = stored.state.head + 1
        beside = None if headers is None else msgspec.json.encode(headers)
        event = Event(
            event_id or f"{ref}-{seq}", raw, key, op, collection, earlier=before, headers=beside
        )
        now_ms = 1_000 + seq if time_ms is None else time_ms
        stored.append(AppendRequest([event], version=version, now_ms=now_ms), mine=EPOCH)
        self.stored.grown(ref)
        return stored.records[-1]

    def about(self, collection: str, op: Op = "drop", *, partition: int = 0) -> Record:
        """A record about a whole collection; that of a rename says the new name."""
        document = {"to": f"{collection}.new"} if op == "rename" else None
        return self.append(document, op=op, collection=collection, partition=partition)

    def mark(self, *, partition: int = 0, version: int = 1) -> Record:
        """A record that says that the origin has lost changes."""
        return self.append(b"null", op="lost", partition=partition, version=version)

    @property
    def records(self) -> dict[PartitionRef, list[Record]]:
        return {ref: list(stored.records) for ref, stored in self.stored.partitions.items()}

    def keep_from(self, ref: PartitionRef, seq: int) -> None:
        """Retention has taken what is before `seq`."""
        records = self.stored.partition(ref).records
        records[:] = [record for record in records if record.seq >= seq]

    def lose(self, ref: PartitionRef, seqs: Iterable[int]) -> None:
        """They are lost from wherever they were, and the head stays."""
        lost, records = set(seqs), self.stored.partition(ref).records
        records[:] = [record for record in records if record.seq not in lost]

    def flip(self, ref: PartitionRef, seq: int) -> None:
        """A bit of its document is another one than was appended."""
        records = self.stored.partition(ref).records
        at = next(at for at, record in enumerate(records) if record.seq == seq)
        document = records[at].document
        records[at] = replace(records[at], document=bytes([document[0] ^ 1]) + document[1:])

    def lose_history(self, ref: PartitionRef, *, behind: int = 0) -> None:
        """The store was put back to where this partition ended there, or had never been."""
        if not behind:
            del self.stored.partitions[ref]
            return
        stored = self.stored.partition(ref)
        stored.records[:] = [one for one in stored.records if one.seq <= behind]
        stored.state = msgspec.structs.replace(stored.state, head=min(behind, stored.state.head))

    def move_on(self, ref: PartitionRef, head: int) -> None:
        """No seq up to `head` is given out any more."""
        stored = self._opened(ref)
        stored.move_on(stored.state.head, head, mine=EPOCH)

    def _opened(self, ref: PartitionRef, version: int = 1) -> MemoryPartition:
        stored = self.stored.partition(ref)
        stored.open(EPOCH, version=version, sealed=False)
        return stored

    # --- what goes wrong -------------------------------------------------------------------------

    async def extent(self, ref: PartitionRef) -> Extent:
        self._check(ref)
        return await super().extent(ref)

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        self.reads += 1
        self.asked.append(after_seq)
        if self.gate is not None:
            await self.gate.wait()
        self._check(ref)
        if self.read_takes_s:
            await asyncio.sleep(self.read_takes_s)
        found = await super().read(ref, after_seq=after_seq, limit=limit)
        if len(found) > self.at_a_time:
            raise StorageFailed("the database took too long")
        if bad := self.damaged_seqs.get(ref, set()).intersection(one.seq for one in found):
            raise StorageFailed(f"records {bad} of {ref} are damaged")
        return found

    def _check(self, ref: PartitionRef) -> None:
        if error := self.failing or self.damaged.get(ref):
            raise error
