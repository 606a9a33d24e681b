"""How the whole system fares, told to every browser: one look for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.control.from_coordinator import PushTokens
from headgate.model.http import Request, Response, Route, error_response, json_response
from headgate.services.gateway.public import watching
from tests.services.gateway.access import bearer, knowing, token
from tests.services.gateway.world import WAIT_S, SseSubscriber, World, running, until


@dataclass
class Coordinator:
    """Answers looks as the test wants."""

    seen: dict[str, Any] = field(default_factory=lambda: {"nodes": ["n1"], "rate": 1})
    looks: int = 0
    trouble: errors.HeadgateError | None = None
    refused: str = ""
    """Whose credential isn't taken any more."""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """While it isn't set, nobody is answered."""
    server: HttpServer = field(default_factory=HttpServer)

    async def overview(self, request: Request) -> Response:
        self.looks += 1
        await self.answers.wait()
        if self.refused and request.headers.get("authorization") == self.refused:
            return error_response(errors.Unauthorized("the token was revoked"))
        return error_response(self.trouble) if self.trouble else json_response(self.seen)

    async def begin(self) -> str:
        self.answers.set()
        app = HttpApp([Route("GET", "/v1/overview", self.overview)])
        return f"http://127.0.0.1:{await self.server.start(app, '127.0.0.1', 0)}"


@dataclass
class Stage:
    world: World
    coordinator: Coordinator

    @contextlib.asynccontextmanager
    async def browser(self, said: dict[str, str] | None = None) -> AsyncIterator[SseSubscriber]:
        url = f"{self.world.gateway.url}/v1/overview/stream"
        request = self.world.client.get(url).headers(said or {}).streamed_read_buffer_limit(0)
        async with request.build_streamed() as answer:
            assert answer.status == 200
            yield SseSubscriber(answer)

    async def status(self) -> tuple[int, Any]:
        url = f"{self.world.gateway.url}/v1/overview/stream"
        answer = await self.world.client.get(url).build().send()
        return answer.status, msgspec.json.decode(bytes(await answer.bytes()))


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(watching, "pause_s", lambda _took_s: 0.01)
    coordinator = Coordinator()
    url = await coordinator.begin()
    try:
        async with running(coordinator_url=url) as world:
            yield Stage(world, coordinator)
    finally:
        await coordinator.server.stop(0.5)


async def told(browser: SseSubscriber, wanted: dict[str, Any]) -> dict[str, Any]:
    """Everything that it was told until it had heard `wanted`."""
    known: dict[str, Any] = {}
    async with asyncio.timeout(WAIT_S):
        while not wanted.items() <= known.items():
            message = await browser.next()
            assert message["event"] == "overview"
            known |= message["data"]
    return known


async def test_a_browser_is_told_all_and_then_what_changes(stage: Stage) -> None:
    async with stage.browser() as browser:
        first = (await browser.next())["data"]
        assert first["nodes"] == ["n1"]
        assert (first["rate"], first["away"]) == (1, "")
        stage.coordinator.seen = {"nodes": ["n1"], "rate": 2}
        assert "nodes" not in await told(browser, {"rate": 2})


async def test_many_browsers_cost_one_look_and_none_costs_none(stage: Stage) -> None:
    async with contextlib.AsyncExitStack() as opened:
        browsers = [await opened.enter_async_context(stage.browser()) for _ in range(8)]
        for browser in browsers:
            await told(browser, {"rate": 1})
        before, heard = stage.coordinator.looks, 0
        while stage.coordinator.looks < before + 5:
            await browsers[0].next()
            heard += 1
        assert heard >= stage.coordinator.looks - before - 2
    public = stage.world.gateway._routes.watching
    await until(lambda: public._looking is None)
    after = stage.coordinator.looks
    assert not public._watchers
    async with stage.browser() as browser:
        await told(browser, {"rate": 1})
    assert stage.coordinator.looks > after


async def test_it_says_that_nobody_leads_and_goes_on_by_itself(stage: Stage) -> None:
    async with stage.browser() as browser:
        await told(browser, {"rate": 1})
        stage.coordinator.trouble = errors.NotNow("another coordinator leads")
        await told(browser, {"away": watching.LEADERLESS})
        async with stage.browser() as second:
            assert (await told(second, {"away": watching.LEADERLESS}))["rate"] == 1
        stage.coordinator.trouble = None
        stage.coordinator.seen = {"nodes": [], "rate": 3}
        await told(browser, {"rate": 3, "away": ""})


async def test_it_says_so_when_the_coordinator_is_away(stage: Stage) -> None:
    await stage.coordinator.server.stop(0.1)
    async with stage.browser() as browser:
        await told(browser, {"away": watching.SILENT})


async def test_nobody_is_told_that_somebody_else_is_refused(stage: Stage) -> None:
    """The coordinator hears of a revoked token first, and by another clock when one ends."""
    stage.coordinator.refused = "Bearer anns"
    bob, ann = {"authorization": "Bearer bobs"}, {"authorization": "Bearer anns"}
    async with stage.browser(bob) as his, stage.browser(ann) as hers:
        await told(hers, {"rate": 1})
        stage.coordinator.seen = {"rate": 2}
        known = await told(his, {"rate": 2})
        assert known["away"] == ""
    async with stage.browser(ann) as hers:
        before = stage.coordinator.looks
        await until(lambda: stage.coordinator.looks > before + 2)
        stage.coordinator.refused = ""
        assert (await hers.next())["data"]["away"] == "", "nothing was said before that"


async def test_what_is_no_overview_is_not_shown(stage: Stage) -> None:
    stage.coordinator.seen = ["something", "else"]  # type: ignore[assignment]
    async with stage.browser() as browser:
        await told(browser, {"away": watching.SILENT})


async def test_there_is_a_bound_and_a_sentence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCHERS_MAX", 1)
    async with stage.browser() as browser:
        await told(browser, {"rate": 1})
        status, body = await stage.status()
        assert (status, body["error"]["code"]) == (503, "overloaded")
        assert "browsers watch this gateway already" in body["error"]["message"]


async def test_a_gateway_that_stops_ends_the_streams(stage: Stage) -> None:
    async with stage.browser() as browser:
        await told(browser, {"rate": 1})
        await stage.world.gateway.stop()
        with pytest.raises(AssertionError, match="the stream has ended"):
            await told(browser, {"rate": "never"})


async def test_who_may_not_look_any_more_is_gone_while_the_coordinator_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "pause_s", lambda _took_s: 0.01)
    monkeypatch.setattr(watching, "LOOK_TIMEOUT_S", 10 * WAIT_S)
    coordinator = Coordinator()
    url = await coordinator.begin()
    ann, bob = token("ann", "read:nodes"), token("bob", "read:nodes")
    guarded = running(
        coordinator_url=url, make_principals=lambda machine: knowing(machine, ann, bob)
    )
    try:
        async with guarded as world:
            stage = Stage(world, coordinator)
            async with stage.browser(bearer("ann")) as hers, stage.browser(bearer("bob")) as his:
                await told(hers, {"rate": 1})
                await told(his, {"rate": 1})
                coordinator.answers.clear()
                coordinator.seen = {"rate": 2}
                before = coordinator.looks
                await until(lambda: coordinator.looks > before)
                assert world.coordinator.session is not None
                world.coordinator.session.push(PushTokens((bob,), 2))
                with pytest.raises(AssertionError, match="the stream has ended"):
                    await told(hers, {"rate": 2})
                coordinator.answers.set()
                await told(his, {"rate": 2})
    finally:
        coordinator.answers.set()
        await coordinator.server.stop(0.5)
