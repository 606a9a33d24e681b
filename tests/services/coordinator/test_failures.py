"""A coordinator that fails in a decision says so, gives the leadership back and begins anew; a node
that can't be served is told why, and the others don't notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc
import msgspec
import pytest
from pyreqwest.client import ClientBuilder
from structlog.testing import capture_logs

from headgate.adapters.control_stream import decode_from_coordinator
from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.grpc.control import METHOD, GrpcControlServer, GrpcControlSession
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.processes import free_port
from headgate.client.http import HttpClient
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.members.members import Timing
from headgate.decide.operations.supervision import RestartPolicy
from headgate.errors import InvalidRequest, NotNow
from headgate.model.api import CreateTopic, Health, TopicInfo
from headgate.model.control import from_coordinator
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.topology import Placement
from headgate.ports.control import ControlStream
from headgate.services.coordinator.service import (
    KEPT_OUT,
    Coordinator,
    CoordinatorPorts,
    CoordinatorSettings,
)
from headgate.telemetry import LogLine
from tests.services.coordinator.test_service import Node
from tests.waiting import until

QUICK = RestartPolicy(initial_s=0.01, max_s=0.05, stable_s=60.0)
POISON = "router-9"


class Fragile(Cluster):
    """Fails half-way: in the next ticks, on every hello of POISON, and on a topic of that name."""

    ticks_to_fail = 0
    error: ClassVar[Exception] = KeyError("nobody thought of that")

    def tick(self, now_ms: int) -> list[Effect]:
        if Fragile.ticks_to_fail:
            Fragile.ticks_to_fail -= 1
            self.topics.clear()
            raise Fragile.error
        return super().tick(now_ms)

    def opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        effects = super().opened(session, hello, now_ms)
        assert hello.node_id != POISON, "nobody thought of that"
        return effects

    def create_topic(self, name: str, partitions: int, placement: Placement) -> list[Effect]:
        effects = super().create_topic(name, partitions, placement)
        assert name != POISON, "nobody thought of that"
        return effects


@pytest.fixture(autouse=True)
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("headgate.services.coordinator.service.Cluster", Fragile)
    yield
    Fragile.ticks_to_fail = 0


class Served:
    """A coordinator with real stores, and the nodes that join it."""

    def __init__(
        self,
        folder: DataFolder,
        node_id: str,
        election: SoleElection,
        patience: RestartPolicy,
        *,
        alone: bool,
    ) -> None:
        ports = (free_port("127.0.0.1"), free_port("127.0.0.1"))
        self.address = f"127.0.0.1:{ports[0]}"
        self.nodes: list[Node] = []
        self.coordinator = Coordinator(
            CoordinatorSettings(
                node_id, "127.0.0.1", ports, 0, Timing(), 1, alone=alone, patience=patience
            ),
            CoordinatorPorts(
                election,
                lambda _: EmbeddedCoordinationStore(folder),
                EmbeddedCheckpointStore(folder),
                EmbeddedLogReader(folder),
                EmbeddedLetterStore(folder),
                HttpServer(),
                GrpcControlServer(),
                THIS_MACHINE,
            ),
        )
        self.url = ""

    def join(self, role: SessionRole, node_id: str, **said: float) -> Node:
        hello = Hello(role=role, node_id=node_id, incarnation="a", url="http://x", **said)  # type: ignore[arg-type]
        node = Node(GrpcControlSession(self.address, lambda: hello))
        node.listening = asyncio.create_task(self._listen(node))
        self.nodes.append(node)
        return node

    async def _listen(self, node: Node) -> None:
        async for message in node.session.messages():
            node.got.append(message)

    @property
    def leads(self) -> bool:
        try:
            self.coordinator._leading()
        except NotNow:
            return False
        return True

    @property
    def members(self) -> set[str]:
        return set(self.coordinator._leading().cluster.members) if self.leads else set()

    async def get(self, path: str) -> bytes:
        async with ClientBuilder().build() as client:
            return bytes(await (await client.get(self.url + path).build().send()).bytes())

    async def health(self) -> Health:
        return msgspec.json.decode(await self.get("/health"), type=Health)

    async def create(self, name: str) -> TopicInfo:
        async with HttpClient(self.url, timeout_s=20) as client:
            return await client.post("/v1/topics", CreateTopic(name), TopicInfo)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    node_id: str = "coordinator-1",
    *,
    election: SoleElection | None = None,
    patience: RestartPolicy = QUICK,
) -> AsyncIterator[Served]:
    folder = DataFolder.open(tmp_path / "data")
    alone = election is None
    served = Served(folder, node_id, election or SoleElection(), patience, alone=alone)
    served.url = await served.coordinator.start()
    try:
        yield served
    finally:
        for node in served.nodes:
            await node.close()
        await served.coordinator.stop(0.5)


# --- a node that can't be served ------------------------------------------------------------------


async def test_a_weight_that_no_plan_takes_is_refused_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        odd = served.join("ingest", "ingest-9", weight=0.0005)
        await until(lambda: odd.last(from_coordinator.Refused))
        reason = odd.every(from_coordinator.Refused)[0].reason
        assert reason.startswith("ingest-9 has the weight 0.0005; set ingest.weight to")
        assert not odd.every(from_coordinator.Welcome)

        ingest, router = served.join("ingest", "ingest-1"), served.join("router", "router-1")
        await until(lambda: served.members == {"ingest-1", "router-1"})
        boot = served.coordinator._leading().cluster.stored.boot
        for node in (ingest, router):
            await until(lambda: node.last(from_coordinator.PushTopology))  # noqa: B023 - awaited here
        term = served.coordinator._leading()
        await term.apply(lambda _: term.cluster.create_topic("flights", 3, "keyed"))
        await until(
            lambda: (given := router.last(from_coordinator.Assign)) and len(given.sources) == 3
        )
        assert served.coordinator._leading().cluster.stored.boot == boot


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param({"role": "wizard"}, "wizard", id="no such role"),
        pytest.param({"weight": "much"}, "weight", id="no number"),
        pytest.param({"type": "Prophecy"}, "Prophecy", id="no hello at all"),
    ],
)
async def test_a_hello_that_cannot_be_read_is_answered(
    tmp_path: Path, said: dict[str, object], reason: str
) -> None:
    hello = {"type": "Hello", "role": "router", "node_id": "r", "incarnation": "1", **said}
    async with (
        serving(tmp_path) as served,
        asyncio.timeout(30),
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(msgspec.msgpack.encode(hello))
        refused = decode_from_coordinator(await stream.read())
        assert isinstance(refused, from_coordinator.Refused)
        assert reason in refused.reason
        assert await stream.read() is grpc.aio.EOF


async def test_who_is_refused_in_the_middle_asks_ever_less_often() -> None:
    """As if it had not been welcomed: it will say the same again."""

    async def welcomes_and_refuses(stream: ControlStream, _hello: Hello) -> None:
        stream.send(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
        stream.send(from_coordinator.Refused("what it says can't be read"))
        stream.hang()
        await stream.write_until_hung()

    server = GrpcControlServer()
    [port] = await server.start(welcomes_and_refuses, "127.0.0.1", [0])
    hello = Hello(role="router", node_id="router-1", incarnation="a")
    session = GrpcControlSession("127.0.0.1:1", lambda: hello)
    async with asyncio.timeout(30):
        assert not await session._converse(f"127.0.0.1:{port}")
    await session.close()
    await server.stop(0)


# --- a decision that fails ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(KeyError("nobody thought of that"), id="a fault"),
        pytest.param(InvalidRequest("nobody thought of that"), id="what was meant for a caller"),
    ],
)
async def test_ticks_that_fail_end_terms_and_another_one_goes_on_with_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Fragile, "error", error)
    async with serving(tmp_path) as served:
        gateway = served.join("gateway", "gateway-1")
        await until(lambda: "gateway-1" in served.members)
        first = served.coordinator._leading()
        await first.apply(lambda _: first.cluster.create_topic("flights", 3, "keyed"))
        with capture_logs() as logs:
            Fragile.ticks_to_fail = 2
            await until(lambda: Fragile.ticks_to_fail == 0 and served.leads)
        said = [one for one in logs if one["event"] == LogLine.TERM_FAILED]
        assert [one["failures"] for one in said] == [1, 2]
        assert "nobody thought of that" in said[0]["reason"]

        term = served.coordinator._leading()
        assert term is not first
        assert set(term.cluster.topics) == {"flights"}
        assert term.cluster.stored.boot == first.cluster.stored.boot + 2
        await until(lambda: "gateway-1" in served.members and gateway.session.connected)

        health = await served.health()
        [failed] = [one for one in health.reasons if "ended by an error" in one]
        assert failed.startswith("2 terms of this coordinator ended by an error, the last one")
        assert "nobody thought of that" in failed
        assert b"headgate_terms_failed_total 2.0" in await served.get("/metrics")


async def test_an_operator_whose_request_cannot_be_decided_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(NotNow, match="begins anew with what is stored"):
            await served.create(POISON)
        await until(lambda: served.leads)
        assert not served.coordinator._leading().cluster.topics


async def test_while_no_term_goes_on_health_says_why(tmp_path: Path) -> None:
    patience = RestartPolicy(initial_s=60.0, max_s=60.0)
    async with serving(tmp_path, patience=patience) as served:
        Fragile.ticks_to_fail = 1
        # It stops to lead before its term has ended, which waits for those who asked it something.
        await until(lambda: served.coordinator._failures.count)
        health = await served.health()
        reasons = health.reasons
        assert health.status == "degraded"
        assert any("a term of this coordinator ended by an error" in one for one in reasons)
        assert "no coordinator leads at the moment" in reasons


async def test_another_coordinator_takes_over_from_one_that_fails(tmp_path: Path) -> None:
    """It has given its leadership back, and doesn't want it again at once."""
    election = SoleElection()
    patience = RestartPolicy(initial_s=60.0, max_s=60.0)
    async with (
        serving(tmp_path, "coordinator-1", election=election, patience=patience) as first,
        serving(tmp_path, "coordinator-2", election=election) as second,
    ):
        assert first.leads
        assert not second.leads
        Fragile.ticks_to_fail = 1
        await until(lambda: second.leads)
        assert not first.leads


async def test_one_whose_words_end_every_term_is_left_out_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        gateway = served.join("gateway", "gateway-1")
        await until(lambda: "gateway-1" in served.members)
        poison = served.join("router", POISON)
        await until(
            lambda: (said := poison.last(from_coordinator.Refused)) and said.reason == KEPT_OUT
        )
        await until(lambda: served.members == {"gateway-1"} and gateway.session.connected)
        term = served.coordinator._leading()
        lane = Hello(role="lane", node_id="router-1", incarnation="a")
        assert not served.coordinator._is_kept_out(lane)
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        assert served.coordinator._leading() is term
        reasons = (await served.health()).reasons
        assert any(f"when router {POISON} spoke" in one for one in reasons)
