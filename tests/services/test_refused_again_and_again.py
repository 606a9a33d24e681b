"""Whoever is refused again and again is told so later, and nobody else is."""

from __future__ import annotations

import asyncio

import pytest

from headgate import errors
from headgate.answering import HELD_S, REFUSALS_PER_S, HttpApp
from headgate.decide.limits.rates import BURST_S
from headgate.model.http import Headers, Request, Response, Route
from tests.virtual_time import run_virtual

AT_ONCE = round(REFUSALS_PER_S * BURST_S)


async def nothing() -> dict[str, object]:
    raise AssertionError("nobody reads a body")


def asked(path: str, peer: str) -> Request:
    return Request("GET", path, nothing, headers=Headers(), peer=peer)


async def unknown(_request: Request) -> Response:
    raise errors.Unauthorized("who are you?")


async def limited(_request: Request) -> Response:
    raise errors.RateLimited("not so fast", retry_after_s=1.0)


async def welcome(_request: Request) -> Response:
    return Response(200)


def app() -> HttpApp:
    routes = {"/unknown": unknown, "/limited": limited, "/welcome": welcome}
    return HttpApp([Route("GET", path, handler) for path, handler in routes.items()])


@pytest.mark.parametrize("path", ["/unknown", "/limited"])
def test_a_flood_of_refusals_is_held_back_and_nobody_else(path: str) -> None:
    async def scenario() -> None:
        served, loop = app(), asyncio.get_running_loop()

        async def took_s(path: str, peer: str) -> float:
            began_s = loop.time()
            await served.answer(asked(path, peer))
            return loop.time() - began_s

        flood = await asyncio.gather(*(took_s(path, "10.0.0.1") for _ in range(10 * AT_ONCE)))
        assert flood[: AT_ONCE - 1] == [0.0] * (AT_ONCE - 1)
        assert max(flood) == HELD_S
        assert sum(one > 0 for one in flood) >= 8 * AT_ONCE
        assert await took_s("/welcome", "10.0.0.1") == 0.0
        assert await took_s(path, "10.0.0.2") == 0.0
        await asyncio.sleep(60.0)
        assert await took_s(path, "10.0.0.1") == 0.0

    run_virtual(scenario())
