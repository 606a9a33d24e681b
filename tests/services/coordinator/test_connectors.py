"""Connectors over the coordinator's HTTP: what is asked is decided, kept, told and shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from headgate.client.http import HttpClient
from headgate.decide.operations.health import of_cluster
from headgate.errors import ConnectorExists, HeadgateError, InvalidRequest, NotFound, UnknownTopic
from headgate.model.api import Status
from headgate.model.connector import ConnectorReport
from headgate.model.connectors_api import (
    ConnectorInfo,
    ConnectorList,
    CreateConnector,
    ResetConnector,
    RouteInfo,
    SkipChange,
)
from headgate.model.control import from_coordinator
from headgate.model.control.reports import ConnectorReports
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner, Topology
from tests.services.coordinator.test_service import Node, Served, running
from tests.waiting import until

ONE = "/v1/connectors/orders"
ORDERS = CreateConnector(
    "orders",
    "mongodb",
    {"uri": "mongodb://reader:${PASSWORD}@db-1", "database": "shop"},
    [RouteInfo("changes", "o*"), RouteInfo("rest")],
)


class Operated:
    """A coordinator with an ingest node and two topics, and whoever calls it."""

    def __init__(self, served: Served, client: HttpClient) -> None:
        self.served = served
        self.client = client
        self.ingest: Node = served.join("ingest", "ingest-1")

    async def begin(self) -> None:
        await until(lambda: self.ingest.last(from_coordinator.PushTopology) is not None)
        term = self.served.coordinator._leading()
        for name in ("changes", "rest"):
            await term.apply(lambda _, name=name: term.cluster.create_topic(name, 1, "keyed"))  # type: ignore[misc]

    async def create(self, body: CreateConnector = ORDERS) -> ConnectorInfo:
        return await self.client.post("/v1/connectors", body, ConnectorInfo)

    async def post(self, action: str, body: object = None) -> ConnectorInfo:
        return await self.client.post(f"{ONE}/{action}", body or {}, ConnectorInfo)

    async def shown(self) -> ConnectorInfo:
        return await self.client.get(ONE, ConnectorInfo)

    async def says(self, state: str, **fields: object) -> ConnectorInfo:
        """What is shown once its reader has said so."""
        epoch = (await self.shown()).epoch
        given = {"name": "orders", "epoch": epoch, "state": state, **fields}
        report = ConnectorReport(**given)  # type: ignore[arg-type]
        await self.ingest.session.send(ConnectorReports((report,)))
        cluster = self.served.coordinator._leading().cluster
        await until(lambda: "orders" in cluster.heard and cluster.heard["orders"].report == report)
        return await self.shown()

    async def told(self, condition: Callable[[Topology], bool]) -> None:
        """Wait until the ingest node has heard of it."""
        await until(
            lambda: (
                (push := self.ingest.last(from_coordinator.PushTopology)) is not None
                and condition(push.topology)
            )
        )


@pytest.fixture
async def operated(tmp_path: Path) -> AsyncIterator[Operated]:
    async with (
        running(tmp_path) as served,
        HttpClient(served.coordinator._routes.url, timeout_s=10) as client,
    ):
        world = Operated(served, client)
        await world.begin()
        yield world


async def test_a_connector_is_created_told_listed_and_deleted(operated: Operated) -> None:
    made = await operated.create()
    assert (made.name, made.state, made.node, made.epoch) == ("orders", "starting", "ingest-1", 2)
    assert made.settings == ORDERS.settings
    assert [fed.topic for fed in made.topics] == ["changes", "rest"]
    assert await operated.create() == made  # whoever got no answer asks again
    ref = PartitionRef("orders", 0)
    await operated.told(lambda topology: topology.intakes == (Owner(ref, "ingest-1", 2),))
    kept = (await operated.served.store.load()).connectors
    assert [one.name for one in kept] == ["orders"]
    listed = await operated.client.get("/v1/connectors", ConnectorList)
    assert [one.name for one in listed.connectors] == ["orders"]
    await operated.client.delete(ONE)
    with pytest.raises(NotFound, match="there is no connector orders"):
        await operated.shown()
    with pytest.raises(NotFound):
        await operated.client.delete(ONE)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"type": "csv"}, InvalidRequest),
        ({"name": "no names like this"}, InvalidRequest),
        ({"routes": []}, InvalidRequest),
        ({"routes": [RouteInfo("nowhere")]}, UnknownTopic),
        ({"settings": {"uri": "mongodb://me:hunter2@db-1"}}, InvalidRequest),
        ({"begin_at": "some day"}, InvalidRequest),
    ],
)
async def test_what_cannot_be_is_refused_in_a_sentence(
    operated: Operated, changed: dict[str, object], error: type[HeadgateError]
) -> None:
    with pytest.raises(error) as refused:
        await operated.create(msgspec.structs.replace(ORDERS, **changed))
    assert "hunter2" not in str(refused.value)
    assert (await operated.client.get("/v1/connectors", ConnectorList)).connectors == []


async def test_another_one_of_the_same_name_is_refused(operated: Operated) -> None:
    await operated.create()
    with pytest.raises(ConnectorExists, match="connector orders exists already"):
        await operated.create(msgspec.structs.replace(ORDERS, settings={"uri": "mongodb://db-2"}))


async def test_it_is_paused_and_goes_on(operated: Operated) -> None:
    await operated.create()
    await operated.says("running", lag_ms=1_000, lag_records=7, history_ms=7_200_000, taken=12)
    paused = await operated.post("pause")
    assert (paused.state, paused.paused, paused.epoch) == ("paused", True, 2)
    assert await operated.post("pause") == paused
    assert (await operated.post("resume")).paused is False


async def test_a_change_that_cannot_be_taken_is_skipped(operated: Operated) -> None:
    await operated.create()
    with pytest.raises(InvalidRequest, match="hasn't stopped at a change"):
        await operated.post("skip")
    stopped = await operated.says("stopped", stopped_at="p7", stopped_what="a large document")
    assert "headgate connector skip orders" in stopped.reason
    with pytest.raises(InvalidRequest, match="has stopped at another change by now"):
        await operated.post("skip", SkipChange("p6"))
    skipped = await operated.post("skip", SkipChange("p7"))
    assert [(one.position, one.what) for one in skipped.skipped] == [("p7", "a large document")]
    await operated.told(lambda topology: topology.connectors[0].skip == "p7")


async def test_it_begins_anew_where_history_was_lost(operated: Operated) -> None:
    await operated.create()
    await operated.says("running", begun=True)
    lost = await operated.says("history-lost", begun=True, stopped_at="p9")
    assert lost.begun
    for nonsense in ("", "yesterday", "2126-01-01T00:00:00Z"):
        with pytest.raises(InvalidRequest):
            await operated.post("reset", ResetConnector(nonsense))
    reset = await operated.post("reset", ResetConnector("2026-01-01T00:00:00Z"))
    assert (reset.epoch, reset.begin_at, reset.begun) == (3, "time:2026-01-01T00:00:00Z", False)
    assert reset.state == "starting"


async def test_status_health_and_metrics_know_of_it(operated: Operated) -> None:
    await operated.create()
    await operated.says("stopped", stopped_at="p7", lag_ms=2_500, history_ms=60_000, taken=3)
    status = await operated.client.get("/v1/status", Status)
    assert [one.state for one in status.connectors] == ["stopped"]
    _, reasons = of_cluster(status)
    assert any(reason.startswith("connector orders: stopped: ") for reason in reasons)
    raw = await operated.client.call("GET", "/metrics")
    lines = raw.decode().splitlines()
    assert 'headgate_connector_state{connector="orders",state="stopped"} 1.0' in lines
    assert 'headgate_connector_lag_seconds{connector="orders"} 2.5' in lines
    assert 'headgate_connector_history_seconds{connector="orders"} 60.0' in lines
    assert 'headgate_connector_taken_total{connector="orders"} 3.0' in lines
    assert not any("lag_records{" in line for line in lines)  # nobody can tell
    await operated.client.delete(ONE)
    after = (await operated.client.call("GET", "/metrics")).decode()
    assert 'connector="orders"' not in after


async def test_a_connector_outlives_its_coordinator(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as served,
        HttpClient(served.coordinator._routes.url, timeout_s=10) as client,
    ):
        world = Operated(served, client)
        await world.begin()
        await world.create()
        await world.post("pause")
    async with (
        running(tmp_path) as served,
        HttpClient(served.coordinator._routes.url, timeout_s=10) as client,
    ):
        found = await client.get(ONE, ConnectorInfo)
        assert (found.state, found.epoch, found.node) == ("paused", 2, None)
        Operated(served, client)
        await until(lambda: served.coordinator._leading().cluster.intakes.owned() != ())
        found = await client.get(ONE, ConnectorInfo)
        assert (found.state, found.epoch, found.node) == ("paused", 3, "ingest-1")
