"""A term without a network or a disk, on virtual time: its stores and its peers are in memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.adapters.control_stream import ServerStream, decode_from_coordinator, encode
from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.members.members import Timing
from headgate.errors import HeadgateError, StorageFailed
from headgate.model.control import from_coordinator
from headgate.model.control.from_coordinator import FromCoordinator
from headgate.model.control.message import Message
from headgate.model.control.to_coordinator import Hello, ToCoordinator
from headgate.model.leader import Leader
from headgate.model.stored import StoredState
from headgate.services.coordinator.term import Decide, Term
from tests.decide.coordination.faults import Faults

M = TypeVar("M", bound=Message)
QUIET = (from_coordinator.CheckedIn,)
"""What is answered without a decision."""


class Kept:
    """Implements ports.coordination.CoordinationStore; `saved` is everything that ever was."""

    def __init__(self) -> None:
        self.saved: list[StoredState] = []
        self.error: StorageFailed | None = None

    async def load(self) -> StoredState:
        return self.saved[-1] if self.saved else StoredState()

    async def save(self, state: StoredState) -> None:
        await asyncio.sleep(0.001)  # others have their turn meanwhile
        if self.error is not None:
            raise self.error
        self.saved.append(state)

    async def close(self) -> None: ...


@dataclass
class Call:
    """Implements adapters.control_stream.Pipe, the coordinator's end."""

    incoming: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    heard: list[FromCoordinator] = field(default_factory=list)

    async def read(self) -> bytes | None:
        return await self.incoming.get() or None

    async def write(self, data: bytes) -> None:
        self.heard.append(decode_from_coordinator(data))


class FailingTerm(Term):
    """One whose decisions fail where `faults` says; `told` is what it had sent by then."""

    faults: Faults
    stage: Stage
    at_the_fault: tuple[int, int] | None = None

    def _decided(self, decide: Decide, by: Hello | None = None) -> list[Effect]:
        def failing(now_ms: int) -> list[Effect]:
            with self.faults.deciding():
                return decide(now_ms)

        struck = self.faults.struck
        try:
            return super()._decided(failing, by)
        finally:
            if self.faults.struck != struck:
                self.at_the_fault = self.stage.known_outside()


class Stage:
    """One coordinator, term after term, and everybody who is connected to it."""

    def __init__(self) -> None:
        self.election = SoleElection()
        self.kept = Kept()
        self.positions = MemoryCheckpointStore()
        self.letters = MemoryLetterStore()
        self.reader = MemoryLogReader()
        self.faults = Faults()
        self.machine = ScriptedMachine(clock=lambda: asyncio.get_running_loop().time())
        self.streams: dict[int, ServerStream] = {}
        self.sent = 0
        self.calls: dict[int, Call] = {}
        self.serving: list[asyncio.Task[None]] = []

    def known_outside(self) -> tuple[int, int]:
        """How often something was kept, and told to anybody."""
        return len(self.kept.saved), self.sent

    async def begin(self) -> FailingTerm:
        leadership = await self.election.campaign(Leader("coordinator-1"))
        term = FailingTerm(
            leadership,
            self.kept,
            self.positions,
            self.letters,
            self.reader,
            self.machine,
            self.streams,
        )
        term.faults, term.stage = self.faults, self
        await term.begin(lambda stored, now_ms: Cluster(stored, Timing(), "coordinator-1", now_ms))
        return term

    def connect(self, term: Term, hello: Hello) -> int:
        session = len(self.calls) + 1
        call = self.calls[session] = Call()
        stream = self.streams[session] = _Counted(self, call)
        self.serving.append(asyncio.create_task(self._serve(term, session, stream, hello)))
        return session

    async def _serve(self, term: Term, session: int, stream: ServerStream, hello: Hello) -> None:
        try:
            with suppress(HeadgateError):
                await term.serve(session, stream, hello)
        finally:
            del self.streams[session]

    def say(self, session: int, message: ToCoordinator) -> None:
        self.calls[session].incoming.put_nowait(encode(message))

    def heard(self, session: int, kind: type[M]) -> list[M]:
        return [m for m in self.calls[session].heard if isinstance(m, kind)]

    async def end(self, term: Term) -> None:
        for stream in self.streams.values():
            stream.hang()
        await term.end()
        await asyncio.wait_for(asyncio.gather(*self.serving), 10)


class _Counted(ServerStream):
    def __init__(self, stage: Stage, call: Call) -> None:
        super().__init__(call)
        self._stage = stage

    def send(self, message: FromCoordinator) -> None:
        if not isinstance(message, QUIET):
            self._stage.sent += 1
        super().send(message)
