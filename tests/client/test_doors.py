"""Which gateway a client goes to when the first one can't take it. Over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.answering import HttpApp
from headgate.client import Consumer, Event, Subscriber
from headgate.client.defaults import open_calls
from headgate.client.gateway_choice import Doors
from headgate.model.api import NodeStatus
from headgate.model.http import Request, Response, Route
from tests.client.producing.produce_server import produce_server
from tests.client.served_gateway import served_gateway

WAIT_S = 30.0
FULL = {"code": "overloaded", "message": "this gateway is full", "details": {}}


@pytest.mark.parametrize("kind", ["subscriber", "consumer"])
async def test_one_that_has_no_room_is_left_for_one_that_has(kind: str) -> None:
    async with served_gateway() as full, served_gateway() as free:
        urls = [full.url, free.url]
        client: Subscriber | Consumer
        if kind == "subscriber":
            client = Subscriber(urls, retry_first_s=0.01)
            client.add("a", id="name")
        else:
            client = Consumer(urls, "a", "g", consumer="name", retry_first_s=0.01)
        async with client:
            full.refused["name"] = FULL
            full.drop_all()
            free.append("a", 1)
            item = await asyncio.wait_for(anext(client), WAIT_S)
            assert isinstance(item, Event)
            assert free.opened == 1


async def test_the_others_that_one_address_names_are_asked_in_turn() -> None:
    async with produce_server() as server:
        names = ["ws://one", "ws://two"]
        server.ws_url = names[0]
        server.nodes = [NodeStatus(name, "gateway", "ready", ws_url=name) for name in names]
        doors = Doors(server.url, open_calls=open_calls, machine=ScriptedMachine())
        begun = []
        for _ in range(3):
            way = await doors.way_in()
            begun.append(way.door)
            doors.refused(way.door)
        await doors.close()
    assert begun == [names[0], names[1], names[0]]


@pytest.mark.parametrize("status", [200, 404])
async def test_an_address_where_something_else_answers_is_passed_over(status: int) -> None:
    async def page(_request: Request) -> Response:
        return Response(status, b"<html>", "text/html")

    other = HttpServer()
    port = await other.start(HttpApp([Route("GET", "/v1/status", page)]), "127.0.0.1", 0)
    try:
        async with served_gateway() as gateway:
            elsewhere = f"http://127.0.0.1:{port}"
            async with Subscriber([elsewhere, gateway.url], "a"):
                assert gateway.opened == 1
        with pytest.raises(errors.InvalidRequest, match="not a Headgate"):
            await Subscriber(elsewhere, "a").__aenter__()
    finally:
        await other.stop(1.0)


@pytest.mark.parametrize("dead_first", [True, False])
async def test_who_is_away_is_waited_for_also_beside_an_address_of_something_else(
    dead_first: bool, unused_tcp_port: int
) -> None:
    async def page(_request: Request) -> Response:
        return Response(404, b"<html>", "text/html")

    other = HttpServer()
    port = await other.start(HttpApp([Route("GET", "/v1/status", page)]), "127.0.0.1", 0)
    urls = [f"http://127.0.0.1:{unused_tcp_port}", f"http://127.0.0.1:{port}"]
    doors = Doors(
        urls if dead_first else urls[::-1], open_calls=open_calls, machine=ScriptedMachine()
    )
    try:
        with pytest.raises(errors.NotNow):
            await doors.way_in()
    finally:
        await doors.close()
        await other.stop(1.0)
