"""Connectors at the public address, without a socket: an ingest node checks, the coordinator
decides, and what failed a check is not created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from headgate import errors
from headgate.adapters.memory.http import MemoryHttpListener, MemoryWeb
from headgate.adapters.memory.origin import MemoryHistory, MemoryOrigin
from headgate.answering import HttpApp
from headgate.client.http import HttpClient
from headgate.decide.produce.room import Room
from headgate.model.connector import Connector
from headgate.model.connectors_api import (
    ConnectorInfo,
    CreateConnector,
    DeletedConnector,
    OriginChecked,
    OriginSettings,
    RouteInfo,
)
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.origin import Finding
from headgate.services.gateway.public.connectors import ConnectorRoutes
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.ingest.connectors.origin_checks import OriginChecks
from tests.virtual_time import run_virtual

SETTINGS = {"uri": "mongodb://reader:${PASSWORD}@db-1"}
ORDERS = CreateConnector("orders", "mongodb", SETTINGS, [RouteInfo("changes")])
WELL = [
    Finding("replica set", "ok"),
    Finding("history", "warning", "it keeps 1 h; let it keep more"),
]
ILL = [*WELL, Finding("rights", "failed", "grant find on shop to reader")]


Check = Callable[[str, Mapping[str, str]], Awaitable[list[Finding]]]


class CheckedOrigin(MemoryOrigin):
    """One that finds what the test says."""

    def __init__(self, check: Check, connector: Connector) -> None:
        super().__init__(MemoryHistory())
        self._check = partial(check, connector.type, connector.settings)

    async def check(self) -> list[Finding]:
        return await self._check()

    async def release(self) -> None:
        for one in await self._check():
            if one.verdict == "failed":
                raise errors.OriginRefused(one.sentence)


class Stage:
    """A public address, ingest nodes that check as they are told, and a coordinator."""

    def __init__(self, *checks: Check, timeout_s: float = 20.0) -> None:
        self.web = MemoryWeb()
        self.checks = checks
        self.timeout_s = timeout_s
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.urls: list[str] = []

    async def _decide(self, request: Request) -> Response:
        self.created.append(msgspec.json.decode(await request.body(10_000)))
        return json_response(ConnectorInfo(name="orders", type="mongodb", state="starting"), 201)

    async def _describe(self, request: Request) -> Response:
        name = request.params["name"]
        if name != "orders":
            raise errors.NotFound(f"there is no connector {name}")
        info = ConnectorInfo(name=name, type="mongodb", state="running", settings=SETTINGS)
        return json_response(info)

    async def _delete(self, request: Request) -> Response:
        self.deleted.append(request.params["name"])
        return Response(204)

    async def _listen(self, routes: list[Route], host: str) -> str:
        port = await MemoryHttpListener(self.web).start(HttpApp(routes), host, 0)
        return f"http://{host}:{port}"

    async def client(self) -> HttpClient:
        for number, check in enumerate(self.checks):
            node = OriginChecks(partial(CheckedOrigin, check), timeout_s=self.timeout_s)
            self.urls.append(await self._listen(node.routes(), f"ingest-{number}"))
        one = "/v1/connectors/{name}"
        decide = [
            Route("POST", "/v1/connectors", self._decide),
            Route("GET", one, self._describe),
            Route("DELETE", one, self._delete),
        ]
        coordinator = await self._listen(decide, "coordinator")
        forwarder = Forwarder(
            self.web.open_calls(), body_limit_bytes=1_000_000, room=Room(10_000_000, setting="here")
        )
        routes = ConnectorRoutes(
            forwarder,
            leader=LeaderCalls(forwarder, lambda: coordinator, timeout_s=5.0),
            ingest_urls=lambda _topic, _body: self.urls,
        )
        public = await self._listen(routes.table(), "gateway")
        return HttpClient(public, timeout_s=100.0, open_calls=self.web.open_calls)


def finding(*found: Finding) -> Check:
    async def check(kind: str, settings: Mapping[str, str]) -> list[Finding]:
        assert (kind, settings) == ("mongodb", SETTINGS)
        return list(found)

    return check


def failing(error: Exception) -> Check:
    async def check(_kind: str, _settings: Mapping[str, str]) -> list[Finding]:
        raise error

    return check


async def _hang(_kind: str, _settings: Mapping[str, str]) -> list[Finding]:
    await asyncio.sleep(1_000)
    return []


def checked(stage: Stage, settings: Mapping[str, str] = SETTINGS) -> OriginChecked:
    async def ask() -> OriginChecked:
        async with await stage.client() as client:
            body = OriginSettings("mongodb", dict(settings))
            return await client.post("/v1/connectors/check", body, OriginChecked)

    return run_virtual(ask())


def created(stage: Stage, query: str = "", body: CreateConnector = ORDERS) -> ConnectorInfo:
    async def ask() -> ConnectorInfo:
        async with await stage.client() as client:
            return await client.post(f"/v1/connectors{query}", body, ConnectorInfo)

    return run_virtual(ask())


def test_an_ingest_node_looks_and_nothing_is_created() -> None:
    stage = Stage(finding(*WELL))
    found = checked(stage)
    assert found.ok
    assert [one.verdict for one in found.findings] == ["ok", "warning"]
    assert not checked(Stage(finding(*ILL))).ok
    assert stage.created == []


def test_what_is_well_is_created_as_it_was_asked() -> None:
    stage = Stage(finding(*WELL))
    assert created(stage).state == "starting"
    assert stage.created == [msgspec.to_builtins(ORDERS)]


def test_what_failed_is_not_created_and_says_what_to_do() -> None:
    stage = Stage(finding(*ILL))
    with pytest.raises(errors.InvalidRequest, match="rights: grant find on shop") as refused:
        created(stage)
    assert [one["verdict"] for one in refused.value.details["findings"]] == [  # type: ignore[attr-defined]
        "ok",
        "warning",
        "failed",
    ]
    assert stage.created == []


def test_whoever_says_so_creates_without_a_check() -> None:
    stage = Stage(finding(*ILL))
    created(stage, "?check=false")
    assert len(stage.created) == 1
    with pytest.raises(errors.InvalidRequest, match="write true or false"):
        created(Stage(finding(*WELL)), "?check=perhaps")


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (failing(errors.OriginUnavailable("db-1 can't be reached")), "db-1 can't be reached"),
        (failing(errors.OriginRefused("there is no variable P")), "there is no variable P"),
        (_hang, "no answer within 5 s"),
    ],
)
def test_an_origin_that_cannot_be_looked_at_has_failed(check: Check, sentence: str) -> None:
    found = checked(Stage(check, timeout_s=5.0))
    assert not found.ok
    assert sentence in found.findings[0].sentence


def test_a_node_that_is_gone_is_passed_over() -> None:
    stage = Stage(finding(*WELL))
    stage.urls.append("http://ingest-9:1")
    assert checked(stage).ok


def test_without_an_ingest_node_nobody_can_look() -> None:
    with pytest.raises(errors.PeerUnreachable, match="no ingest node is known"):
        checked(Stage())


def test_a_secret_is_refused_before_it_is_sent_anywhere() -> None:
    wrong = {"uri": "mongodb://me:hunter2@db-1"}
    asked = Stage(failing(AssertionError("it was sent")))
    for refused in (lambda: checked(asked, wrong), lambda: _created_with(wrong)):
        with pytest.raises(errors.InvalidRequest, match="would be shown to everybody"):
            refused()


def _created_with(settings: dict[str, str]) -> ConnectorInfo:
    stage = Stage(failing(AssertionError("it was sent")))
    return created(stage, body=msgspec.structs.replace(ORDERS, settings=settings))


def deleted(stage: Stage, name: str = "orders") -> DeletedConnector:
    async def ask() -> DeletedConnector:
        async with await stage.client() as client:
            answer = await client.call("DELETE", f"/v1/connectors/{name}")
            return msgspec.json.decode(answer, type=DeletedConnector)

    return run_virtual(ask())


def test_what_a_connector_has_made_at_its_origin_goes_with_it() -> None:
    stage = Stage(finding(*WELL))
    assert deleted(stage) == DeletedConnector("orders")
    assert stage.deleted == ["orders"]


@pytest.mark.parametrize(
    ("stage", "left"),
    [
        (Stage(finding(*ILL)), "grant find on shop"),
        (Stage(failing(errors.OriginUnavailable("db-1 can't be reached"))), "can't be reached"),
        (Stage(_hang, timeout_s=5.0), "no answer within 5 s"),
        (Stage(), "no ingest node"),
    ],
)
def test_what_could_not_be_removed_is_said(stage: Stage, left: str) -> None:
    found = deleted(stage)
    assert left in found.left
    assert stage.deleted == ["orders"]


def test_a_connector_that_is_not_there_leaves_nothing() -> None:
    stage = Stage(failing(AssertionError("it was asked")))
    with pytest.raises(errors.NotFound):
        deleted(stage, "others")
