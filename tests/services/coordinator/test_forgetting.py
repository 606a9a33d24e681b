"""A deleted topic takes its letters with it, and nothing of a topic that has its name later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import structlog

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.decide.coordination.failures import TermFailures
from headgate.errors import NotNow, StorageFailed
from headgate.model import api
from headgate.model.control import to_coordinator
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.http import Request, Response
from headgate.model.letters import NewLetter
from headgate.ports.letters import Fences
from headgate.services.coordinator.evidence import EvidenceRoutes
from headgate.services.coordinator.groups import GroupRoutes
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.coordinator.routes import CoordinatorRoutes
from headgate.services.coordinator.service import PATIENCE
from headgate.services.coordinator.sweeping import CHUNK, sweep_letters
from headgate.services.coordinator.term import Term
from headgate.telemetry import LogLine
from tests.services.coordinator.term_doubles import Stage
from tests.virtual_time import run_virtual

ROLES: tuple[SessionRole, ...] = ("ingest", "router")
FLIGHTS = PartitionRef("flights", 0)


def parked(seq: int, topic: str = "flights") -> NewLetter:
    document = msgspec.Raw(b"{}")
    event = Delivery(topic, 0, seq, f"{topic}-{seq}", "k", "", "insert", document, ("s",), 1)
    return NewLetter("gateway-1", "parked", "unreachable", event)


class Letters(MemoryLetterStore):
    """Something happens when letters of a deleted topic are forgotten."""

    first: Callable[[], Awaitable[None]] | None = None
    afterwards: Callable[[], Awaitable[None]] | None = None

    async def abandon(self, fences: Fences, *, limit: int) -> int:
        if self.first is not None:
            await self.first()
        gone = await super().abandon(fences, limit=limit)
        afterwards, self.afterwards = self.afterwards, None
        if afterwards is not None:
            await afterwards()
        return gone

    def seqs(self) -> list[int]:
        return [one.delivery.seq for one in self.stored.letters.values()]


class World:
    """A coordinator that leads, an ingest node, a router, and operators."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.letters = self.stage.letters = Letters()
        self.term: Term

    async def begin(self) -> None:
        self.term = term = await self.stage.begin()
        sessions = [
            self.stage.connect(term, Hello(role=role, node_id=f"{role}-1", incarnation="a"))
            for role in ROLES
        ]
        routes = CoordinatorRoutes(
            node_id="coordinator-1",
            default_partitions=1,
            term=lambda: term,
            letters=LetterRoutes(
                self.letters,
                check_leads=lambda: None,
                on_revived=_nobody,
                is_target=lambda _: True,
                machine=self.stage.machine,
            ),
            evidence=EvidenceRoutes(lambda: term, self.letters, self.stage.machine),
            groups=GroupRoutes(lambda: term, MemoryCheckpointStore(), MemoryLogReader()),
            failures=TermFailures(PATIENCE),
            machine=self.stage.machine,
        )
        self._app = HttpApp(routes.table())
        self._adopting = asyncio.create_task(self._adopt(sessions))
        await asyncio.sleep(1)

    async def _adopt(self, sessions: Sequence[int]) -> None:
        """The nodes take up what they are told, at once."""
        while True:
            said = to_coordinator.AckTopology(self.term.cluster.generation, ("flights",))
            for session in sessions:
                self.stage.say(session, said)
            await asyncio.sleep(0.1)

    async def end(self) -> None:
        self._adopting.cancel()
        await self.stage.end(self.term)

    async def call(self, method: str, path: str, body: object = None) -> Response:
        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": msgspec.json.encode(body)}

        answer = await self._app.answer(Request(method, path, receive=receive))
        assert isinstance(answer, Response)
        return answer

    async def create(self) -> int:
        return (await self.call("POST", "/v1/topics", api.CreateTopic("flights"))).status

    async def delete(self) -> int:
        return (await self.call("DELETE", "/v1/topics/flights")).status

    @property
    def epoch(self) -> int:
        return self.term.cluster.sources.owners[FLIGHTS].epoch

    async def park(self, *seqs: int) -> None:
        """As the lane does that has the partition now."""
        fences = {FLIGHTS: Fence(self.epoch, 1)}
        await self.letters.claim(fences)
        await self.letters.put([parked(seq) for seq in seqs], fences, now_ms=1)


async def _nobody(_refs: frozenset[PartitionRef]) -> None:
    return


def played(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        world = World()
        await world.begin()
        try:
            await scenario(world)
        finally:
            await world.end()

    run_virtual(play())


def test_what_the_topic_of_the_same_name_parks_stays_while_the_former_ones_go() -> None:
    async def scenario(world: World) -> None:
        await world.create()
        await world.park(*range(1, 2 * CHUNK))

        async def back() -> None:
            assert await world.create() == 201
            await world.park(5_001)

        world.letters.afterwards = back  # between two chunks
        assert await world.delete() == 204
        assert world.letters.seqs() == [5_001]

    played(scenario)


def test_whoever_sweeps_late_leaves_a_topic_that_is_back_alone() -> None:
    async def scenario(world: World) -> None:
        await world.create()
        await world.delete()
        left = await world.term.left_behind()
        await world.create()
        await world.park(5_001)

        async def left_behind() -> Mapping[str, Fences]:
            return {**left, "ships": {PartitionRef("ships", 0): Fence(8)}}

        at = {PartitionRef("ships", 0): Fence(7)}
        await world.letters.put([parked(1, "ships")], at, now_ms=1)
        sweep = sweep_letters(
            world.letters,
            max_age_s=1e6,
            left_behind=left_behind,
            machine=ScriptedMachine(begins_ms=1),
        )
        sweeping = asyncio.create_task(sweep)
        await asyncio.sleep(1)
        sweeping.cancel()
        assert world.letters.seqs() == [5_001], "and the others are swept all the same"

    played(scenario)


def test_a_topic_whose_letters_cannot_be_forgotten_keeps_no_other() -> None:
    class Damaged(Letters):
        """Nothing of the boats can be changed."""

        async def abandon(self, fences: Fences, *, limit: int) -> int:
            if any(ref.topic == "boats" for ref in fences):
                raise StorageFailed("the page is damaged")
            return await super().abandon(fences, limit=limit)

    async def left_behind() -> Mapping[str, Fences]:
        return {name: {PartitionRef(name, 0): Fence(8)} for name in ("boats", "ships")}

    async def scenario() -> None:
        letters = Damaged()
        for name in ("boats", "ships"):
            fences = {PartitionRef(name, 0): Fence(7)}
            await letters.put([parked(1, name)], fences, now_ms=1)
        machine = ScriptedMachine(begins_ms=1)
        sweep = sweep_letters(letters, max_age_s=1e6, left_behind=left_behind, machine=machine)
        with structlog.testing.capture_logs() as logs:
            sweeping = asyncio.create_task(sweep)
            await asyncio.sleep(1)
            sweeping.cancel()
        assert [one.delivery.topic for one in letters.stored.letters.values()] == ["boats"]
        assert [(one["event"], one.get("error")) for one in logs] == [
            (LogLine.SWEEP_FAILED, "the page is damaged"),
            (LogLine.LETTERS_SWEPT, None),
        ]

    run_virtual(scenario())


def test_a_topic_comes_back_only_without_the_letters_of_the_former_one() -> None:
    async def scenario(world: World) -> None:
        await world.create()
        await world.park(1, 2)

        async def fails() -> None:
            raise StorageFailed("the disk is full")

        world.letters.first = fails
        assert await world.delete() == 204
        answer = await world.call("POST", "/v1/topics", api.CreateTopic("flights"))
        assert answer.status == 503
        assert b"former topic flights are not forgotten yet (the disk is full)" in answer.body
        world.letters.first = None
        assert await world.create() == 201
        assert world.letters.seqs() == []

    played(scenario)


def test_of_two_who_create_a_topic_the_later_one_forgets_nothing_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.create()
        await world.delete()

        async def somebody_else() -> None:
            world.letters.first = None
            assert await world.create() == 201
            await world.park(5_001)

        world.letters.first = somebody_else
        assert await world.create() == 503
        assert world.letters.seqs() == [5_001]

    played(scenario)


def test_nothing_is_forgotten_for_a_deletion_that_is_not_kept() -> None:
    async def scenario(world: World) -> None:
        await world.create()
        await world.park(1)
        world.stage.kept.error = StorageFailed("the disk is full")
        deleting = asyncio.create_task(world.delete())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises((NotNow, StorageFailed)):
            await world.term.left_behind()
        assert "flights" in world.term.cluster.deleted
        assert await deleting == 503
        assert world.letters.seqs() == [1]

    played(scenario)
