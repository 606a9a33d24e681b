"""What nodes run with, asked at the public address."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.settings_api import SettingInfo
from headgate.model.topology import Node
from headgate.services.settings import SettingRoutes
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import NODE, World, running, until

SHOWN = (SettingInfo("log_level", "debug", "file a.yaml"),)


@contextlib.asynccontextmanager
async def node(name: str, role: str) -> AsyncIterator[str]:
    server = HttpServer()
    port = await server.start(HttpApp(SettingRoutes(name, role, SHOWN).table()), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0.5)


async def ask(world: World, query: str = "") -> tuple[int, Any]:
    answer = await world.client.get(f"{world.gateway.url}/v1/settings{query}").build().send()
    return answer.status, await answer.json()


async def test_each_node_is_asked_for_what_it_runs_with() -> None:
    async with (
        node("ingest-7", "ingest") as ingest_url,
        node("gateway-7", "gateway") as gateway_url,
        node("coordinator-7", "coordinator") as coordinator_url,
    ):
        known = topology(ingest_url=ingest_url)
        others = (
            Node("ingest-7", "ingest", ingest_url),
            Node("gateway-7", "gateway", "for lanes alone", public_url=gateway_url),
        )
        coordinator = FakeCoordinator(topology=replace(known, nodes=others))
        async with running(coordinator=coordinator, coordinator_url=coordinator_url) as world:
            await until(lambda: world.gateway._control.topology.nodes == others)
            status, own = await ask(world)
            assert (status, own) == (200, {"node": NODE, "role": "gateway", "settings": []})
            for name in ("ingest-7", "gateway-7", "coordinator-7"):
                status, found = await ask(world, f"?node={name}")
                assert (status, found["node"]) == (200, name)
                assert found["settings"] == [
                    {"key": "log_level", "value": "debug", "origin": "file a.yaml"}
                ]
            status, nobody = await ask(world, "?node=nobody")
            assert status == 404
            assert "there is no node 'nobody'" in nobody["error"]["message"]
