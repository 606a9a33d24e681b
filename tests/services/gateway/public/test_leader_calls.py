"""Asking a coordinator that doesn't lead finds the one that does."""

from __future__ import annotations

import pytest

from headgate import errors
from headgate.adapters.memory.http import MemoryHttpListener, MemoryWeb
from headgate.answering import HttpApp
from headgate.client.http import HttpClient
from headgate.decide.produce.room import Room
from headgate.model.api import CreateTopic
from headgate.model.http import Handler, Request, Response, Route, json_response
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls

BODY = CreateTopic("flights", 4)
ELSEWHERE = "http://coordinator-9:80"


class Stage:
    """Coordinators, each with the address of whom it says that leads, and a gateway that knows the
    first."""

    def __init__(self, *leaders: int | str | None) -> None:
        self._web = MemoryWeb()
        self._leaders = leaders
        self._urls: list[str] = []
        self.asked: list[int] = []

    def _coordinator(self, number: int) -> Handler:
        async def handler(request: Request) -> Response:
            self.asked.append(number)
            assert b"flights" in await request.body(1_000)
            match self._leaders[number]:
                case None:
                    return json_response({"by": number}, 201)
                case int(other):
                    raise errors.NotNow("another leads", leader=self._urls[other])
                case said:
                    raise errors.NotNow("this coordinator doesn't lead", leader=said)

        return handler

    async def _listen(self, handler: Handler, host: str) -> str:
        app = HttpApp([Route("POST", "/v1/topics", handler)])
        port = await MemoryHttpListener(self._web).start(app, host, 0)
        return f"http://{host}:{port}"

    async def create(self) -> dict[str, int]:
        for number in range(len(self._leaders)):
            self._urls.append(
                await self._listen(self._coordinator(number), f"coordinator-{number}")
            )
        room = Room(10_000, setting="here")
        forwarder = Forwarder(self._web.open_calls(), body_limit_bytes=1_000, room=room)
        leader = LeaderCalls(forwarder, lambda: self._urls[0], timeout_s=5.0)
        public = await self._listen(leader.forward, "gateway")
        client = HttpClient(public, timeout_s=5.0, open_calls=self._web.open_calls)
        try:
            return await client.post("/v1/topics", BODY, dict[str, int])
        finally:
            await client.close()


async def test_the_leader_answers_whoever_is_asked_first() -> None:
    stage = Stage(1, None)
    assert await stage.create() == {"by": 1}
    assert stage.asked == [0, 1]


async def test_one_that_leads_is_asked_once() -> None:
    stage = Stage(None, 0)
    assert await stage.create() == {"by": 0}
    assert stage.asked == [0]


async def test_two_of_two_minds_are_asked_once_each() -> None:
    stage = Stage(1, 0)
    with pytest.raises(errors.NotNow, match="another leads"):
        await stage.create()
    assert stage.asked == [0, 1]


@pytest.mark.parametrize("said", ["", ELSEWHERE])
async def test_where_nobody_is_said_to_lead_or_nobody_is_there_it_is_not_now(said: str) -> None:
    stage = Stage(said)
    with pytest.raises(errors.NotNow):
        await stage.create()
    assert stage.asked == [0]
