"""/health and /metrics of every role, over HTTP, with the real coordinator behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from pyreqwest.client import Client, ClientBuilder

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.grpc.control import GrpcControlSession
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.config import Config
from headgate.decide.operations.health import RouterView
from headgate.decide.operations.latencies import Stopwatch
from headgate.errors import StorageFailed
from headgate.metrics.roles import ROLES, RouterMetrics
from headgate.model.api import Health
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import GatewayLink, LaneReport, PartitionReport, RouterReport
from headgate.model.event import PartitionRef
from headgate.model.position import Tally
from headgate.model.topology import Owner
from headgate.services.coordinator.service import Coordinator
from headgate.services.router.vitals import RouterVitals
from headgate.spark.windows.progress import ProgressListener
from headgate.wiring import roles
from tests.waiting import until

TOPIC = "flights"
REF = PartitionRef(TOPIC, 0)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Stage:
    coordinator: Coordinator
    url: str
    ingest_url: str
    gateway_url: str
    client: Client

    async def health(self, url: str) -> tuple[int, Health]:
        answer = await self.client.get(f"{url}/health").build().send()
        return answer.status, msgspec.json.decode(await answer.bytes(), type=Health)

    async def metrics(self, url: str) -> Samples:
        answer = await self.client.get(f"{url}/metrics").build().send()
        assert answer.status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(await answer.text())
            for sample in family.samples
        }

    async def post(self, url: str, body: object) -> None:
        answer = await self.client.post(url).body_json(body).build().send()
        assert answer.status < 300, await answer.text()

    async def produce(self, count: int) -> None:
        events = [{"document": {"n": n}} for n in range(count)]
        await self.post(f"{self.ingest_url}/v1/topics/{TOPIC}/produce", {"events": events})


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    data = DataFolder.open(folder)
    anywhere = {"coordinator": {"http_port": 0, "router_port": 0, "consumer_port": 0}}
    coordinator = roles.build_coordinator(Config.model_validate(anywhere), data)
    url = await coordinator.start()
    port = int(coordinator.client_address.rpartition(":")[2])
    config = Config.model_validate(
        {
            "coordinator": {"http_port": int(url.rpartition(":")[2])},
            "ingest": {"port": 0, "server_port": port},
            "gateway": {"client_port": 0, "server_port": port},
            "public": {"port": 0, "ws_port": 0},
        }
    )
    ingest, gateway = roles.build_ingest(config, data), roles.build_gateway(config, data)
    client = ClientBuilder().timeout(timedelta(seconds=20)).build()
    stage = Stage(coordinator, url, await ingest.start(), await gateway.start(), client)
    try:
        await stage.post(f"{url}/v1/topics", {"name": TOPIC, "partitions": 1})
        yield stage
    finally:
        await client.close()
        await gateway.stop()
        await ingest.stop()
        await coordinator.stop(0.5)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "data") as made:
        yield made


@asynccontextmanager
async def router(
    view: RouterView, coordinator_url: str
) -> AsyncIterator[tuple[str, RouterMetrics]]:
    """What a router's driver serves, without Spark."""
    metrics = RouterMetrics()
    calls = PooledCalls()
    vitals = RouterVitals(metrics, lambda: view, lambda: coordinator_url, calls)
    server = HttpServer()
    port = await server.start(HttpApp(vitals.table()), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}", metrics
    finally:
        await server.stop(0.5)
        await calls.close()


@asynccontextmanager
async def lane(stage: Stage, *reports: LaneReport) -> AsyncIterator[None]:
    """A router and a lane of it, which say what they are told to."""
    address = stage.coordinator.client_address
    mine = to_coordinator.Hello(role="router", node_id="router-1", incarnation="a")
    session = GrpcControlSession(address, lambda: mine)
    own: list[Owner] = []

    async def listen() -> None:
        async for message in session.messages():
            if isinstance(message, from_coordinator.PushTopology):
                await session.send(to_coordinator.AckTopology(message.topology.generation))
            elif isinstance(message, from_coordinator.Assign):
                own[:] = message.sources

    listening = asyncio.create_task(listen())
    await until(lambda: session.connected)
    await session.send(RouterReport("ready", 1, 0.0))
    await until(lambda: bool(own))
    hello = msgspec.structs.replace(mine, role="lane", window=1, owns=tuple(own))
    lane_session = GrpcControlSession(address, lambda: hello)
    try:
        await until(lambda: lane_session.connected)
        for report in reports:
            await lane_session.send(report)
        yield
    finally:
        await lane_session.close()
        await session.close()
        await listening


# --- all roles -----------------------------------------------------------------------------------


async def test_what_every_role_exposes_is_what_is_documented(stage: Stage) -> None:
    await stage.produce(3)
    async with router(RouterView("ready", True), stage.url) as (router_url, _):
        urls = {
            "coordinator": stage.url,
            "ingest": stage.ingest_url,
            "gateway": stage.gateway_url,
            "router": router_url,
        }
        for role, url in urls.items():
            samples = await stage.metrics(url)
            [info] = [labels for name, labels in samples if name == "headgate_info"]
            assert dict(info)["role"] == role
            documented = {
                f"{one.name}{suffix}"
                for one in ROLES[role]().described
                for suffix in ("", "_bucket", "_sum", "_count")
            }
            # The library adds when each counter was created.
            own = {name for name, _ in samples if not name.endswith("_created")}
            assert own <= documented
            status, health = await stage.health(url)
            assert (health.role, status) == (role, 200)
            assert value(samples, "headgate_health", status=health.status) == 1


# --- the coordinator -----------------------------------------------------------------------------


async def test_lag_shows_while_nobody_reads(stage: Stage) -> None:
    await stage.produce(5)
    await until(lambda: stage.coordinator._leading().cluster.heads.get(REF) == 5)
    samples = await stage.metrics(stage.url)
    of = {"topic": TOPIC, "partition": "0"}
    assert value(samples, "headgate_partition_lag", **of) == 5
    assert value(samples, "headgate_partition_lag_seconds", **of) > 0
    assert value(samples, "headgate_partition_health", **of, status="healthy") == 1
    assert value(samples, "headgate_leads") == 1
    _, health = await stage.health(stage.url)
    [partition] = health.partitions
    assert (partition.topic, partition.id, partition.lag) == (TOPIC, 0, 5)
    assert partition.lag_ms > 0
    assert health.status == "degraded"
    assert "router: none is connected" in health.reasons


async def test_what_lanes_report_becomes_metrics(stage: Stage) -> None:
    routing, trips = Stopwatch(), Stopwatch()
    routing.took(0.02)
    trips.took(0.003)
    link = GatewayLink(
        "gateway-9",
        waiting=7,
        pressure="hard",
        breaker="open",
        sent=4,
        acknowledged=40,
        retries=2,
        failures=3,
        parked=6,
        dead=1,
        soft=1,
        hard=2,
        round_trips=trips.so_far(),
        error="no answer",
    )
    first = LaneReport(
        partitions=(PartitionReport(REF, 9, 9, 0, Tally(acknowledged=9)),),
        read=100,
        matched=50,
        delivered=40,
        filter_errors=0,
        links=(link,),
        letters="the disk is full",
        checkpoints="etcd is away",
        checkpoints_saved=3,
        checkpoint_errors=1,
        routing=routing.so_far(),
    )
    later = msgspec.structs.replace(first, read=110)
    async with lane(stage, first, later):
        totals = stage.coordinator._leading().cluster.lane_totals
        await until(
            lambda: bool(totals.routers) and totals.routers["router-1"].counts["read"] == 110
        )
        samples = await stage.metrics(stage.url)
        _, health = await stage.health(stage.url)
    router, gateway = {"router": "router-1"}, {"gateway": "gateway-9"}
    assert value(samples, "headgate_records_read_total", **router) == 110
    assert value(samples, "headgate_events_routed_total", **router) == 50
    assert value(samples, "headgate_checkpoints_saved_total", **router) == 3
    assert value(samples, "headgate_checkpoint_errors_total", **router) == 1
    assert value(samples, "headgate_routing_seconds_bucket", **router, le="0.025") == 1
    assert value(samples, "headgate_routing_seconds_bucket", **router, le="0.01") == 0
    assert value(samples, "headgate_lanes", **router) == 1
    assert value(samples, "headgate_queue_size", **gateway) == 7
    assert value(samples, "headgate_backpressure_lanes", **gateway, level="hard") == 1
    assert value(samples, "headgate_backpressure_events_total", **gateway, level="hard") == 2
    assert value(samples, "headgate_breaker_lanes", **gateway, state="open") == 1
    assert value(samples, "headgate_batches_delivered_total", **gateway) == 4
    assert value(samples, "headgate_delivery_success_total", **gateway) == 40
    assert value(samples, "headgate_delivery_errors_total", **gateway) == 3
    assert value(samples, "headgate_delivery_retries_total", **gateway) == 2
    assert value(samples, "headgate_parked_total", **gateway) == 6
    assert value(samples, "headgate_dead_letters_total", **gateway) == 1
    assert value(samples, "headgate_delivery_seconds_count", **gateway) == 1
    assert value(samples, "headgate_settled_total", topic=TOPIC, outcome="acknowledged") == 9
    assert health.status == "degraded"
    for said in ("the disk is full", "etcd is away", "gateway gateway-9"):
        assert any(said in reason for reason in health.reasons), (said, health.reasons)


async def test_a_store_of_positions_that_is_away_is_said_and_holds_nobody_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StorageFailed("the positions are on the moon")

    monkeypatch.setattr(stage.coordinator._ports.checkpoints, "list", away)
    _, health = await stage.health(stage.url)
    assert any("on the moon" in reason for reason in health.reasons)


async def test_a_coordinator_that_stands_by_is_well_and_one_without_a_leader_is_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = stage.coordinator
    assert coordinator._leader is not None
    another = replace(coordinator._leader, node_id="another")
    monkeypatch.setattr(coordinator, "_leader", another)
    monkeypatch.setattr(coordinator, "_term", None)
    status, health = await stage.health(stage.url)
    assert (status, health.status, health.partitions) == (200, "healthy", [])
    samples = await stage.metrics(stage.url)
    assert value(samples, "headgate_leads") == 0
    assert not [name for name, _ in samples if name == "headgate_partition_lag"]
    # It knows of nobody, or of itself alone, whose term is over.
    for leader in (None, replace(another, node_id=coordinator._settings.node_id)):
        monkeypatch.setattr(coordinator, "_leader", leader)
        _, health = await stage.health(stage.url)
        said = (health.status, health.reasons)
        assert said == ("degraded", ["no coordinator leads at the moment"])


# --- an ingest node ------------------------------------------------------------------------------


async def test_an_ingest_node_answers_for_its_log(stage: Stage) -> None:
    await stage.produce(4)

    async def seen() -> Health:
        async with asyncio.timeout(20):
            while True:
                _, health = await stage.health(stage.ingest_url)
                if health.partitions and health.partitions[0].lag == 4:
                    return health
                await asyncio.sleep(0.05)

    health = await seen()
    assert (health.status, health.reasons) == ("healthy", [])
    assert [(one.topic, one.id, one.status) for one in health.partitions] == [(TOPIC, 0, "healthy")]
    samples = await stage.metrics(stage.ingest_url)
    assert value(samples, "headgate_appends_total", topic=TOPIC) == 4
    assert value(samples, "headgate_log_head", topic=TOPIC, partition="0") == 4
    assert value(samples, "headgate_coordinator_connected") == 1


# --- a router ------------------------------------------------------------------------------------


async def test_a_router_tells_what_the_coordinator_knows_of_its_partitions(stage: Stage) -> None:
    await stage.produce(2)
    await until(lambda: stage.coordinator._leading().cluster.heads.get(REF) == 2)
    view = RouterView("ready", True, frozenset({REF}), window=7, lanes=1)
    async with router(view, stage.url) as (url, metrics):
        _, health = await stage.health(url)
        assert [(one.topic, one.id, one.lag) for one in health.partitions] == [(TOPIC, 0, 2)]
        ProgressListener(metrics).made(
            rows=2,
            began="2026-01-31T12:00:00.000Z",
            duration_ms=1_500,
            phases_ms={"addBatch": 1_200},
        )
        samples = await stage.metrics(url)
    assert value(samples, "headgate_window") == 7
    assert value(samples, "headgate_planned_lanes") == 1
    assert value(samples, "headgate_source_partitions") == 1
    assert value(samples, "headgate_spark_batches_total") == 1
    assert value(samples, "headgate_spark_input_rows_total") == 2
    assert value(samples, "headgate_spark_batch_seconds") == 1.5
    assert value(samples, "headgate_spark_phase_seconds", phase="addBatch") == 1.2
    assert value(samples, "headgate_spark_trigger_time_seconds") == 1_769_860_800


async def test_a_router_whose_coordinator_is_gone_says_so(stage: Stage) -> None:
    view = RouterView("ready", False, frozenset({REF}))
    async with router(view, "http://127.0.0.1:9") as (url, _):
        status, health = await stage.health(url)
    assert (status, health.status, health.partitions) == (200, "degraded", [])
    assert len(health.reasons) == 2
