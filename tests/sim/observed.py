"""Stores that show what is done to them, as it is done: to the oracle, which keeps its own account,
and as situations that a run has met.

What must hold at every single step is checked here: nobody else comes with an epoch that somebody
has, no position is ahead of its log, and retention drops nothing that was never settled unless it
may.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import cast

from msgspec.structs import replace

from headgate.adapters.log.appending import AppendRequest
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.control_network import MemoryControlNetwork, MemoryControlServer
from headgate.adapters.memory.coordination import MemoryCoordination, MemoryCoordinationStore
from headgate.adapters.memory.delivery import Answer, MemoryGateways
from headgate.adapters.memory.letters import MemoryLetters
from headgate.adapters.memory.log import MemoryLog, MemoryPartition
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.errors import ConnectorFenced, Fenced, HeadgateError, IntakeGap
from headgate.model.control.to_coordinator import AckTopology, Hello, ToCoordinator
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import is_target
from headgate.model.intake import IntakeMark
from headgate.model.letters import Letter, NewLetter
from headgate.model.position import Position, Tally
from headgate.model.stored import StoredState
from headgate.ports.control import ControlStream, Serve
from headgate.ports.letters import Fences
from headgate.ports.log import Appended, Extent, Retention, Taken
from tests.sim.oracle import Oracle, Routing
from tests.sim.phases import Phases
from tests.sim.scheduler import Process

Meets = Callable[[str], None]


def _numbers(fence: Fence) -> tuple[int, ...]:
    return fence.epoch, fence.window, fence.attempt


def _caller() -> Process:
    return cast("Process", asyncio.get_running_loop())


class ObservedPartition(MemoryPartition):
    def __init__(self, ref: PartitionRef, oracle: Oracle, meets: Meets) -> None:
        super().__init__(ref)
        self._oracle = oracle
        self._meets = meets
        self.spoils_next: random.Random | None = None
        """What draws which bit of the next record that is written is another one on the disk."""

    def open(self, epoch: int, version: int, *, sealed: bool) -> Extent:
        before = self.state
        extent = super().open(epoch, version, sealed=sealed)
        if sealed and not before.sealed and before.epoch:
            self._meets("a partition is sealed")
        if version > before.version and before.epoch:
            self._meets("a partition takes records of another version")
        self._oracle.owned_by(("log", self.ref, epoch), _caller().name)
        self._oracle.admitted(("log", self.ref), (epoch,))
        return extent

    def spoil(self, at: int, chance: random.Random) -> None:
        """Another bit than was appended is in the document of the record there."""
        record = self.records[at]
        document = bytearray(record.document)
        document[chance.randrange(len(document))] ^= 1 << chance.randrange(8)
        self.records[at] = replace(record, document=bytes(document))
        self._oracle.spoilt(self.ref, record.seq)
        self._meets("a bit of a record is flipped")

    def _appended(self, before: int) -> None:
        for record in self.records[before:]:
            self._oracle.appended(record)
        if self.spoils_next is not None and len(self.records) > before:
            self.spoil(before, self.spoils_next)
            self.spoils_next = None

    def append(self, request: AppendRequest, *, mine: int | None) -> list[Appended]:
        before = len(self.records)
        try:
            appended = super().append(request, mine=mine)
        except Fenced:
            self._meets("an append is refused to a former owner")
            raise
        self._appended(before)
        self._oracle.admitted(("log", self.ref), (mine or 0,))
        if any(one.repeated for one in appended):
            self._meets("an append that was sent again is in the log already")
        return appended

    def take_in(self, mark: IntakeMark, request: AppendRequest, *, mine: int | None) -> Taken:
        before, known = len(self.records), self.taken_in(mark.connector)
        try:
            taken = super().take_in(mark, request, mine=mine)
        except ConnectorFenced:
            self._meets("a batch is refused to a connector's former reader")
            raise
        except IntakeGap:
            self._meets("a batch doesn't join what a partition has of its connector")
            raise
        self._appended(before)
        self._oracle.admitted(("log", self.ref), (mine or 0,))
        self._oracle.admitted(("intake", mark.connector, self.ref), (mark.epoch,))
        self._oracle.owned_by(("intake", mark.connector, mark.epoch), mark.beginning)
        if request.events and taken.added < len(request.events):
            self._meets("a connector's batch that was handed in again is in the log already")
        if request.events and any(one.version < request.version for one in known):
            self._meets("a connector goes on behind a repartition")
        return taken

    def drop_expired(
        self, retention: Retention, *, up_to_seq: int, ids_ms: int, now_ms: int, mine: int | None
    ) -> bool:
        left = super().drop_expired(
            retention, up_to_seq=up_to_seq, ids_ms=ids_ms, now_ms=now_ms, mine=mine
        )
        self._oracle.retained(self.ref, self.extent.earliest, past_settled=retention.past_settled)
        return left

    def drop_records(self, epoch: int) -> None:
        super().drop_records(epoch)
        self._oracle.deleted(self.ref)


class ObservedLog(MemoryLog):
    def __init__(self, oracle: Oracle, meets: Meets) -> None:
        super().__init__()
        self._oracle = oracle
        self._meets = meets

    def partition(self, ref: PartitionRef) -> MemoryPartition:
        if ref not in self.partitions:
            self.partitions[ref] = ObservedPartition(ref, self._oracle, self._meets)
        return self.partitions[ref]


class ObservedPositions(MemoryCheckpointStore):
    def __init__(
        self, stored: dict[PartitionRef, Checkpoint], oracle: Oracle, meets: Meets
    ) -> None:
        super().__init__(stored)
        self._oracle = oracle
        self._meets = meets

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        before = self.stored.get(ref)
        claimed = super().claim(ref, fence, after=after)
        try:
            position = await claimed
        except Fenced:
            self._meets("a claim comes too late")
            raise
        self._admitted(ref, fence)
        if is_target(ref):
            if not _caller().name.startswith("coordinator"):  # which claims for whoever has it
                opened = f"{_caller().name} {fence.claimant}"
                self._oracle.owned_by(("target", ref, fence.epoch), opened)
        else:
            if "/lane-" in _caller().name:  # a coordinator fences as often as it takes
                self._oracle.owned_by(("source", ref, fence), _caller())
                if before is None or before.epoch < fence.epoch:
                    held = None if before is None else before.fence
                    self._oracle.violated(f"{ref} is read under {fence}, and fenced under {held}")
            if before is not None and before.epoch and before.epoch < fence.epoch:
                self._meets("a source partition goes to another epoch")
            if fence.attempt:
                self._meets("a lane begins again in its window")
            if after is not None:
                self._meets("a lane begins from notes")
        return position

    def _admitted(self, ref: PartitionRef, fence: Fence) -> None:
        """Unless somebody else was admitted between the store's answer and its caller's turn, who
        may have stood still meanwhile."""
        if self.stored[ref].fence == fence:
            self._oracle.admitted(("position", ref), _numbers(fence))

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        try:
            await super().save(ref, fence, settled, tally)
        except Fenced:
            self._meets("a position is refused to a former owner")
            raise
        self._admitted(ref, fence)
        if not is_target(ref):
            self._oracle.settled(ref, settled)

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        before = self.stored[ref].settled if ref in self.stored else 0
        await super().reset(ref, fence, settled, resync=resync)
        if settled < before:
            self._meets("a position is put back")
        elif settled > before:
            self._meets("a position is put forward")
            if not resync:
                self._oracle.skipped(ref, before, settled)


class ObservedLetters(MemoryLetters):
    def __init__(self, oracle: Oracle, meets: Meets) -> None:
        super().__init__()
        self._oracle = oracle
        self._meets = meets

    def admit(self, fences: Fences) -> None:
        try:
            super().admit(fences)
        except Fenced:
            self._meets("a letter of a lane that was overtaken is refused")
            raise
        for ref, fence in fences.items():
            self._oracle.admitted(("letters", ref), _numbers(fence))

    def put(self, new: NewLetter, *, now_ms: int) -> None:
        super().put(new, now_ms=now_ms)
        if new.state == "dead":
            self._oracle.died(new)
        self._meets(f"a letter is {new.state}: {new.reason}")

    def bury(self, said: Letter, *, now_ms: int) -> None:
        super().bury(said, now_ms=now_ms)
        self._oracle.died(said)
        self._oracle.stays(said)
        self._meets(f"a parked letter dies: {said.reason}")

    def revive(self, id_: int, *, now_ms: int) -> None:
        super().revive(id_, now_ms=now_ms)
        self._oracle.goes_again(self.letters[id_])

    def forget(self, id_: int) -> None:
        letter = self.letters[id_]
        if letter.state == "dead":
            self._oracle.discarded(letter)
        elif id_ in self.again:
            self._meets("a letter that was sent again arrives")
            self._oracle.went_again(letter)
        else:
            self._meets("a parked letter is delivered")
        super().forget(id_)


class ObservedControlServer(MemoryControlServer):
    """Tells the oracle who is there, and what each has acknowledged of the topology."""

    def __init__(self, network: MemoryControlNetwork, oracle: Oracle) -> None:
        super().__init__(network)
        self._oracle = oracle
        self._acknowledged: dict[str, int] = {}
        """By incarnation of an ingest node: one that comes back still has what it applied."""

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        async def observed(stream: ControlStream, hello: Hello) -> None:
            before = self._acknowledged.get(hello.incarnation, 0)
            now_s = asyncio.get_running_loop().time()
            routing = Routing(hello.role, hello.node_id, now_s, now_s, before)
            at = self._oracle.routing.setdefault(self.loop, [])
            if hello.role in ("client", "ingest"):
                at.append(routing)

            def acknowledges(message: AckTopology) -> None:
                routing.generation = max(message.generation, routing.generation)
                routing.topics = message.topics
                if hello.role == "ingest":
                    self._acknowledged[hello.incarnation] = routing.generation

            try:
                await serve(ObservedControlStream(stream, routing, acknowledges), hello)
            finally:
                if routing in at:
                    at.remove(routing)

        return await super().start(observed, host, ports)


class ObservedControlStream:
    """Implements ports.control.ControlStream."""

    def __init__(
        self,
        stream: ControlStream,
        routing: Routing,
        acknowledges: Callable[[AckTopology], None],
    ) -> None:
        self.send = stream.send
        self.hang = stream.hang
        self.write_until_hung = stream.write_until_hung
        self._receive = stream.receive
        self._routing = routing
        self._acknowledges = acknowledges

    async def receive(self) -> ToCoordinator | None:
        message = await self._receive()
        self._routing.heard_s = asyncio.get_running_loop().time()
        if isinstance(message, AckTopology):
            self._acknowledges(message)
        return message


class ObservedCoordinationStore(MemoryCoordinationStore):
    def __init__(
        self,
        kept: MemoryCoordination,
        revision: int,
        phases: Phases,
        oracle: Oracle,
        meets: Meets,
    ) -> None:
        super().__init__(kept, revision)
        self._phases = phases
        self._oracle = oracle
        self._meets = meets

    async def save(self, state: StoredState) -> None:
        try:
            await super().save(state)
        except Fenced:
            self._meets("the word of a leader that was deposed is refused")
            raise
        self._oracle.admitted(("state",), (self._revision,))
        self._oracle.fenced(state.topics)
        self._phases.kept(state.topics, state.deleted, learns=state.learning)


class ObservedGateways(MemoryGateways):
    def __init__(self, oracle: Oracle, meets: Meets) -> None:
        super().__init__()
        self._oracle = oracle
        self._meets = meets

    def listen(self, url: str, answer: Answer) -> None:
        process = _caller()

        async def observed(batch: DeliveryBatch) -> DeliveryAnswer:
            try:
                answered = await answer(batch)
            except HeadgateError as error:
                self._meets(f"a gateway refuses a batch: {error.code}")
                raise
            for verdict in {one for one in answered.verdicts if one != "accepted"}:
                self._meets(f"a gateway says {verdict}")
            for one, said in zip(batch.deliveries, answered.verdicts, strict=True):
                if said not in ("stale_fence", "retry"):
                    what = "gateway", process.name, process.number, one.topic, one.partition
                    self._oracle.admitted(what, (one.epoch, batch.window, batch.attempt))
            return answered

        super().listen(url, observed)
