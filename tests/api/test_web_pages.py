"""Web pages at coordinator, ingest node and gateway, as the configuration makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.response import Response

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import Config
from headgate.wiring import roles

APP = "https://app.example.com"
FOREIGN = "https://evil.example"
ROLES = ["coordinator", "ingest", "gateway"]
PRODUCE = "/v1/topics/flights/produce"
EVENTS = b'{"events": [{"document": {"n": 1}}]}'
JSON_BODY = {"content-type": "application/json"}


@dataclass
class System:
    client: Client
    urls: dict[str, str]

    async def ask(
        self, method: str, role: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> Response:
        message = self.client.request(method, self.urls[role] + path).headers(headers)
        async with asyncio.timeout(30):
            return await (message.body_bytes(body) if body else message).build().send()


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    data = DataFolder.open(tmp_path / "data")
    public = {"port": 0, "ws_port": 0, "origins": APP}
    anywhere = {"http_port": 0, "router_port": 0, "consumer_port": 0}
    first = Config.model_validate({"coordinator": anywhere, "public": public})
    async with AsyncExitStack() as stack:
        coordinator = roles.build_coordinator(first, data)
        http = await coordinator.start()
        stack.push_async_callback(coordinator.stop)
        control = int(coordinator.client_address.rpartition(":")[2])
        config = Config.model_validate(
            {
                "coordinator": {"http_port": int(http.rpartition(":")[2])},
                "ingest": {"port": 0, "server_port": control},
                "gateway": {"client_port": 0, "server_port": control},
                "public": public,
            }
        )
        node, gateway = roles.build_ingest(config, data), roles.build_gateway(config, data)
        ingest_url = await node.start()
        stack.push_async_callback(node.stop)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        builder = ClientBuilder().timeout(timedelta(seconds=30)).no_proxy()
        client = await stack.enter_async_context(builder.build())
        urls = {"coordinator": http, "ingest": ingest_url, "gateway": gateway.url}
        made = System(client, urls)
        body = b'{"name": "flights", "partitions": 1}'
        created = await made.ask("POST", "gateway", "/v1/topics", JSON_BODY, body)
        assert created.status == 201
        yield made


@pytest.mark.parametrize("role", ROLES)
async def test_every_role_refuses_foreign_pages_and_answers_named_ones(
    system: System, role: str
) -> None:
    for path in ("/health", "/metrics"):
        refused = await system.ask("GET", role, path, {"origin": FOREIGN})
        assert refused.status == 403
        answered = await system.ask("GET", role, path, {"origin": APP})
        assert answered.status in (200, 503)
        assert answered.get_header("access-control-allow-origin") == APP
        plain = await system.ask("GET", role, path, {})
        assert plain.status in (200, 503)
        assert plain.get_header("access-control-allow-origin") is None


@pytest.mark.parametrize("role", ["coordinator", "gateway"])
async def test_a_foreign_page_neither_makes_nor_deletes_topics(system: System, role: str) -> None:
    body = b'{"name": "more", "partitions": 1}'
    for kind in ("application/json", "text/plain"):
        headers = {"origin": FOREIGN, "content-type": kind}
        assert (await system.ask("POST", role, "/v1/topics", headers, body)).status == 403
    gone = await system.ask("DELETE", role, "/v1/topics/flights", {"origin": FOREIGN})
    assert gone.status == 403
    topics = await (await system.ask("GET", role, "/v1/topics", {})).json()
    assert [topic["name"] for topic in topics["topics"]] == ["flights"]


@pytest.mark.parametrize("role", ["ingest", "gateway"])
async def test_a_named_page_produces_and_a_foreign_one_does_not(system: System, role: str) -> None:
    for kind in ("application/json", "text/plain"):
        headers = {"origin": FOREIGN, "content-type": kind}
        assert (await system.ask("POST", role, PRODUCE, headers, EVENTS)).status == 403
    asks = {"origin": APP, "access-control-request-method": "POST"}
    preflight = await system.ask("OPTIONS", role, PRODUCE, asks)
    assert preflight.status == 204
    assert preflight.get_header("access-control-allow-methods") == "POST"
    answer = await system.ask("POST", role, PRODUCE, {**JSON_BODY, "origin": APP}, EVENTS)
    assert answer.status == 200
    assert answer.get_header("access-control-allow-origin") == APP
    assert (await answer.json())["events"][0]["seq"] == 1
    again = await system.ask("POST", role, PRODUCE, JSON_BODY, EVENTS)
    assert (await again.json())["events"][0]["seq"] == 2


@pytest.mark.parametrize("role", ["ingest", "gateway"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_produce_wants_json(system: System, role: str, kind: str) -> None:
    answer = await system.ask("POST", role, PRODUCE, {"content-type": kind}, EVENTS)
    assert answer.status == 415
    assert "Content-Type: application/json" in (await answer.json())["error"]["message"]
    written = await system.ask("POST", role, PRODUCE, JSON_BODY, EVENTS)
    assert (await written.json())["events"][0]["seq"] == 1
