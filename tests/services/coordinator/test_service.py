"""The coordinator's shell over real gRPC streams: what was decided reaches everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from headgate.adapters.control_stream import encode
from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.grpc.control import GrpcControlServer, GrpcControlSession
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.processes import free_port
from headgate.decide.coordination.members.members import Timing
from headgate.decide.coordination.registry.quotas import Quotas
from headgate.errors import StorageFailed
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.message import Message
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.stored import StoredState
from headgate.model.subscription import Subscription
from headgate.services.coordinator import term as term_module
from headgate.services.coordinator.service import (
    Coordinator,
    CoordinatorPorts,
    CoordinatorSettings,
)
from headgate.services.gateway.subscriptions.registering import CHUNK
from tests.waiting import until

M = TypeVar("M", bound=Message)
WAIT_S = 30.0


class TestStore(EmbeddedCoordinationStore):
    """The real store; `gate` holds a save, `failing` makes it fail."""

    __test__ = False

    def __init__(self, folder: DataFolder) -> None:
        super().__init__(folder)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False

    async def save(self, state: StoredState) -> None:
        await self.gate.wait()
        if self.failing:
            raise StorageFailed("the disk is full")
        await super().save(state)


@dataclass
class Node:
    session: GrpcControlSession
    got: list[from_coordinator.FromCoordinator] = field(default_factory=list)
    listening: asyncio.Task[None] | None = None

    def every(self, kind: type[M]) -> list[M]:
        return [message for message in self.got if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M | None:
        found = self.every(kind)
        return found[-1] if found else None

    async def close(self) -> None:
        await self.session.close()
        if self.listening is not None:
            await self.listening

    async def crash(self) -> None:
        """Gone without a goodbye."""
        await self.session._crew.close()
        if self.listening is not None:
            self.listening.cancel()
            await asyncio.gather(self.listening, return_exceptions=True)
            self.listening = None


@dataclass
class Served:
    coordinator: Coordinator
    store: TestStore
    port: int
    nodes: list[Node] = field(default_factory=list)

    def join(
        self,
        role: SessionRole,
        node_id: str,
        incarnation: str = "a",
        window: int = 0,
        revision: int = 0,
    ) -> Node:
        hello = Hello(
            role=role,
            node_id=node_id,
            incarnation=incarnation,
            url="http://x",
            window=window,
            revision=revision,
        )
        node = Node(GrpcControlSession(f"127.0.0.1:{self.port}", lambda: hello))
        node.listening = asyncio.create_task(self._listen(node))
        self.nodes.append(node)
        return node

    async def crash(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.crash()

    async def _listen(self, node: Node) -> None:
        async for message in node.session.messages():
            node.got.append(message)


@asynccontextmanager
async def running(tmp_path: Path, quotas: Quotas | None = None) -> AsyncIterator[Served]:
    folder = DataFolder.open(tmp_path / "data")
    store = TestStore(folder)
    ports = (free_port("127.0.0.1"), free_port("127.0.0.1"))
    settings = CoordinatorSettings(
        "coordinator-1", "127.0.0.1", ports, 0, Timing(), 1, quotas=quotas or Quotas()
    )
    coordinator = Coordinator(
        settings,
        CoordinatorPorts(
            SoleElection(),
            lambda _: store,
            EmbeddedCheckpointStore(folder),
            EmbeddedLogReader(folder),
            EmbeddedLetterStore(folder),
            HttpServer(),
            GrpcControlServer(),
            THIS_MACHINE,
        ),
    )
    await coordinator.start()
    served = Served(coordinator, store, ports[0])
    try:
        yield served
    finally:
        store.gate.set()
        for node in served.nodes:
            await node.close()
        await coordinator.stop(0.5)


async def test_a_gateways_goodbye_reaches_the_lanes_and_everybody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        gateway = served.join("gateway", "gateway-1")
        lane = served.join("lane", "router-1", window=1)
        await until(
            lambda: gateway.session.connected and lane.last(from_coordinator.SubscriptionSnapshot)
        )
        await gateway.session.send(
            to_coordinator.Register(1, (Subscription("s1", "gateway-1", "t"),))
        )
        await until(lambda: lane.last(from_coordinator.SubscriptionChanges))
        await gateway.close()
        await until(
            lambda: (
                (change := lane.last(from_coordinator.SubscriptionChanges))
                and change.removals == ("s1",)
            )
        )
        await until(
            lambda: (
                (push := lane.last(from_coordinator.PushTopology))
                and push.topology.node("gateway-1") is None
            )
        )


async def test_a_node_that_dies_while_its_hello_is_stored_leaves_no_ghost(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        served.store.gate.clear()
        first = served.join("gateway", "gateway-1", "a")
        await until(lambda: "gateway-1" in served.coordinator._leading().cluster.members)
        await first.crash()
        served.store.gate.set()
        second = served.join("gateway", "gateway-1", "b")
        await until(lambda: second.last(from_coordinator.PushTopology))
        assert second.last(from_coordinator.Refused) is None


async def test_a_state_that_cannot_be_stored_ends_the_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        served.store.failing = True
        served.join("ingest", "ingest-1")
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(StorageFailed):
                await served.coordinator.failed()
        served.store.failing = False


async def test_what_a_former_connection_brought_is_forgotten_before_the_next_hello(
    tmp_path: Path,
) -> None:
    """A snapshot of the past must not be taken for the answer to a fresh hello."""
    async with running(tmp_path) as served:
        session = GrpcControlSession(
            f"127.0.0.1:{served.port}",
            lambda: Hello(role="lane", node_id="router-1", incarnation="a", window=1),
        )
        await until(lambda: session._incoming.qsize() >= 2)
        gateway = served.join("gateway", "gateway-1")
        await until(lambda: gateway.session.connected)
        for stream in list(served.coordinator._streams.values())[:1]:
            stream.hang()
        await gateway.session.send(
            to_coordinator.Register(1, (Subscription("s1", "gateway-1", "t"),))
        )
        await until(lambda: gateway.last(from_coordinator.Registered))
        await until(lambda: not session.connected)
        await until(lambda: session.connected and session._incoming.qsize() >= 2)

        registered = gateway.last(from_coordinator.Registered)
        assert registered is not None
        async for message in session.messages():
            if isinstance(message, from_coordinator.SubscriptionSnapshot):
                assert message.revision == registered.revision
                break
        await session.close()


# --- many subscriptions ---------------------------------------------------------------------------


def many(count: int) -> list[Subscription]:
    """As gateways send them, which know what a filter costs."""
    return [Subscription(f"s{n}", "gateway-1", "t", f"key == {n}", cost_us=1) for n in range(count)]


async def test_a_hundred_thousand_come_in_one_stream_and_reach_lanes_as_few_messages(
    tmp_path: Path,
) -> None:
    wanted = many(100_000)
    async with running(tmp_path, Quotas(per_gateway=len(wanted))) as served:
        gateway, lane = served.join("gateway", "gateway-1"), served.join("lane", "r-1", window=1)
        await until(
            lambda: gateway.session.connected and lane.last(from_coordinator.SubscriptionSnapshot)
        )
        for number, begin in enumerate(range(0, len(wanted), CHUNK)):
            chunk = tuple(wanted[begin : begin + CHUNK])
            assert await gateway.session.send(to_coordinator.Register(number, chunk))
        await gateway.session.send(to_coordinator.RegistrationComplete())

        messages = len(wanted) // CHUNK
        await until(lambda: len(lane.every(from_coordinator.SubscriptionChanges)) == messages)
        changes = lane.every(from_coordinator.SubscriptionChanges)
        assert [s for change in changes for s in change.upserts] == wanted
        assert not adopted(gateway)

        late = served.join("lane", "r-2", window=1)
        await until(
            lambda: (part := late.last(from_coordinator.SubscriptionSnapshot)) and not part.more
        )
        parts = late.every(from_coordinator.SubscriptionSnapshot)
        assert [s for part in parts for s in part.subscriptions] == wanted
        assert {part.revision for part in parts} == {changes[-1].revision}
        assert max(len(part.subscriptions) for part in parts) < len(wanted) / 10

        for one in (lane, late):
            await one.session.send(to_coordinator.AckSubscriptions(changes[-1].revision))
        await until(lambda: adopted(gateway))


def adopted(gateway: Node) -> bool:
    floor, registered = (
        gateway.last(from_coordinator.AdoptionFloor),
        gateway.last(from_coordinator.Registered),
    )
    return floor is not None and registered is not None and registered.revision <= floor.revision


async def test_what_goes_to_several_lanes_is_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[type] = []

    def counting(message: object) -> bytes:
        encoded.append(type(message))
        return encode(message)

    async with running(tmp_path) as served:
        gateway = served.join("gateway", "gateway-1")
        lanes = [served.join("lane", f"r-{n}", window=1) for n in range(3)]
        await until(lambda: gateway.session.connected)
        await until(lambda: all(lane.last(from_coordinator.SubscriptionSnapshot) for lane in lanes))
        monkeypatch.setattr("headgate.adapters.control_stream.encode", counting)
        await gateway.session.send(to_coordinator.Register(1, tuple(many(2))))
        await until(lambda: all(lane.last(from_coordinator.SubscriptionChanges) for lane in lanes))
        assert encoded.count(from_coordinator.SubscriptionChanges) == 1


async def test_a_coordinator_that_lost_the_registry_gives_no_lane_a_part_of_it(
    tmp_path: Path,
) -> None:
    """A lane goes on with what it had until every gateway that was known has registered again."""
    async with running(tmp_path) as served:
        first, second = served.join("gateway", "g-1"), served.join("gateway", "g-2")
        await until(lambda: first.session.connected and second.session.connected)
        await until(lambda: len(served.coordinator._leading().cluster.members) == 2)
        await served.crash(first)
        await served.crash(second)
    async with running(tmp_path) as served:
        lane = served.join("lane", "r-1", window=1, revision=7)
        first = served.join("gateway", "g-1")
        await until(lambda: lane.last(from_coordinator.PushTopology) and first.session.connected)
        await first.session.send(to_coordinator.Register(1, (Subscription("s1", "g-1", "t"),)))
        await first.session.send(to_coordinator.RegistrationComplete())
        await until(lambda: first.last(from_coordinator.Registered))
        assert lane.last(from_coordinator.SubscriptionSnapshot) is None
        assert lane.last(from_coordinator.SubscriptionChanges) is None
        assert not adopted(first)

        second = served.join("gateway", "g-2")
        await until(lambda: second.session.connected)
        await second.session.send(to_coordinator.Register(1, (Subscription("s2", "g-2", "t"),)))
        await second.session.send(to_coordinator.RegistrationComplete())
        await until(lambda: lane.last(from_coordinator.SubscriptionSnapshot))
        [snapshot] = lane.every(from_coordinator.SubscriptionSnapshot)
        assert {s.id for s in snapshot.subscriptions} == {"s1", "s2"}
        assert snapshot.revision > 7
        assert not adopted(first)
        await lane.session.send(to_coordinator.AckSubscriptions(snapshot.revision))
        await until(lambda: adopted(first) and adopted(second))


async def test_over_its_quota_a_gateway_is_told_which_were_not_taken(tmp_path: Path) -> None:
    async with running(tmp_path, Quotas(per_gateway=2)) as served:
        gateway = served.join("gateway", "gateway-1")
        await until(lambda: gateway.session.connected)
        await gateway.session.send(to_coordinator.Register(1, tuple(many(3))))
        await until(lambda: gateway.last(from_coordinator.Registered))
        answer = gateway.last(from_coordinator.Registered)
        assert answer is not None
        assert answer.over_quota == ("s2",)
        assert "subscriptions.max_per_gateway" in answer.errors["s2"]


# --- stopping -------------------------------------------------------------------------------------


async def test_a_stop_carries_out_what_was_decided_and_hangs_up(tmp_path: Path) -> None:
    async with running(tmp_path) as served:
        served.store.gate.clear()
        gateway = served.join("gateway", "gateway-1")
        await until(lambda: "gateway-1" in served.coordinator._leading().cluster.members)
        stopping = asyncio.create_task(served.coordinator.stop(0.5))
        ended, _ = await asyncio.wait({stopping}, timeout=0.2)
        assert not ended
        served.store.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        store = EmbeddedCoordinationStore(DataFolder.open(tmp_path / "data"))
        assert "gateway-1" in {node.id for node in (await store.load()).nodes}
        await store.close()
        await until(lambda: not gateway.session.connected)


async def test_a_store_that_hangs_does_not_keep_the_leadership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term_module, "CARRY_OUT_TIMEOUT_S", 0.2)
    async with running(tmp_path) as served:
        served.store.gate.clear()
        served.join("gateway", "gateway-1")
        term = served.coordinator._leading()
        await until(lambda: "gateway-1" in term.cluster.members)
        await asyncio.wait_for(served.coordinator.stop(0.5), WAIT_S)
        assert not term._leadership.held
