"""/client.js in a real browser, against a real gateway: filters, and server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.access.sessions import COOKIE
from headgate.services.principals import KnownPrincipals
from tests.browser.listening import BLANK_PATH, FILES, Listener
from tests.services.gateway.access import knowing, secret_of, token
from tests.services.gateway.world import World, running

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

STREAM_QUIET_MS = 45_000
"""That of client.js."""
DEAD = "ws://127.0.0.1:9/v1/subscribe"


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[World]:
    async with running(web_files=FILES) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def listener(page: Page, world: World) -> Listener:
    await page.goto(world.gateway.url + BLANK_PATH)
    return Listener(page)


async def test_each_subscription_gets_what_its_filter_selects(
    listener: Listener, world: World
) -> None:
    await listener.listen(
        {
            "low": {"where": "altitude < 3000"},
            "high": {"filter": [{"field": "altitude", "op": ">=", "value": 3000}]},
        }
    )
    await listener.until_state("live")
    await world.produce({"altitude": 2_000}, {"altitude": 4_000}, {"altitude": 1_000})
    low = await listener.until("low.event", 2)
    [high] = await listener.until("high.event")
    assert [one["document"]["altitude"] for one in low] == [2_000, 1_000]
    assert high["document"] == {"altitude": 4_000}


async def test_a_wrong_filter_says_where(listener: Listener, world: World) -> None:
    await listener.listen({"wrong": {"where": "altitude < "}, "gone": {"topic": "nowhere"}})
    [error] = await listener.until("wrong.error")
    assert error["code"] == "invalid_filter"
    assert error["details"]["position"] == 11
    [unknown] = await listener.until("gone.error")
    assert unknown["code"] == "unknown_topic"


async def test_where_websockets_are_blocked_events_come_as_a_stream(
    listener: Listener, world: World
) -> None:
    world.gateway._routes.ws_url = DEAD
    await listener.page.reload()
    await listener.listen({"all": {"from": "earliest"}, "low": {"where": "altitude < 3000"}})
    await listener.until_state("live")
    assert len(world.gateway._subscriptions) == 2
    await world.produce({"altitude": 2_000}, {"altitude": 4_000})
    await listener.until("all.event", 2)
    assert await listener.seqs("low") == [1]
    assert not world.gateway._websocket.connections


async def test_a_stream_that_is_lost_goes_on_where_it_was(listener: Listener, world: World) -> None:
    await listener.listen({"all": {}}, transport="sse")
    await listener.until_state("live")
    await world.produce({"n": 1})
    await listener.until("all.event")
    for subscriber in tuple(world.gateway._subscriptions):
        subscriber.close(errors.NotNow("come again"), ends_connection=True)
    await listener.until("all.subscribed", 2)
    await world.produce({"n": 2})
    await listener.until("all.event", 2)
    assert await listener.seqs("all") == [1, 2]


async def test_a_stream_that_nobody_answers_is_given_up(page: Page, world: World) -> None:
    await page.clock.install()
    await page.goto(world.gateway.url + BLANK_PATH)
    listener = Listener(page)
    asked = asyncio.Event()

    async def first_hangs(route: Route) -> None:
        if asked.is_set():
            await route.continue_()
        asked.set()

    await page.route("**/v1/subscribe?*", first_hangs)
    await listener.listen({"all": {}}, transport="sse")
    await asyncio.wait_for(asked.wait(), 30)
    await page.clock.run_for(STREAM_QUIET_MS)
    await listener.until_reason("the stream is silent")
    await page.clock.run_for(1_000)
    await listener.until_state("live")


async def test_more_streams_than_a_browser_has_connections_are_refused(
    listener: Listener, world: World
) -> None:
    await listener.listen({f"n{number}": {} for number in range(6)}, transport="sse")
    [error] = await listener.until("n5.error")
    assert (error["code"], error["details"]) == ("too_large", {"limit": 5})
    await listener.until_state("live")
    await listener.page.evaluate("subscriptions.n0.close(); listen('more', {})")
    await listener.until("more.subscribed")


async def test_a_wrong_question_is_refused_over_a_stream_too(
    listener: Listener, world: World
) -> None:
    await listener.listen({"wrong": {"where": "altitude < "}, "right": {}}, transport="sse")
    [error] = await listener.until("wrong.error")
    assert error["details"]["position"] == 11
    await listener.until_state("live")


async def test_what_is_refused_over_a_stream_takes_no_place_from_others(
    listener: Listener, world: World
) -> None:
    """Somebody types a filter: each attempt is a subscription of its own."""
    await listener.listen({"all": {}}, transport="sse")
    for number in range(5):
        await listener.page.evaluate("name => listen(name, { where: 'altitude < ' })", f"w{number}")
        [error] = await listener.until(f"w{number}.error")
        assert error["details"]["position"] == 11
    await listener.page.evaluate("listen('right', { where: 'altitude < 1' })")
    await listener.until("right.subscribed")


# --- where everybody has to say who they are ------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(page: Page) -> AsyncIterator[tuple[Listener, World]]:
    """A gateway that knows one page's token, and nobody else."""
    own = token("page-1", "subscribe on flights")

    def principals(machine: ScriptedMachine) -> KnownPrincipals:
        return knowing(machine, own)

    async with running(web_files=FILES, make_principals=principals) as world:
        await page.goto(world.gateway.url + BLANK_PATH)
        yield Listener(page), world


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_page_with_a_token_is_let_in(
    guarded: tuple[Listener, World], transport: str
) -> None:
    listener, world = guarded
    # The first one that a listener gives is its text with -1.
    await listener.listen({"all": {}}, transport=transport, token=secret_of("page"))
    await listener.until_state("live")
    await world.produce({"n": 1})
    await listener.until("all.event")


@pytest.mark.parametrize("transport", ["websocket", "sse", "auto"])
async def test_a_page_without_one_is_told_so(
    guarded: tuple[Listener, World], transport: str
) -> None:
    listener, _ = guarded
    await listener.listen({"all": {}}, transport=transport)
    [error] = await listener.until("all.error")
    assert error["code"] == "unauthorized"
    await listener.until_state("idle")


async def test_a_page_that_is_logged_in_needs_no_token(guarded: tuple[Listener, World]) -> None:
    listener, world = guarded
    await listener.page.context.add_cookies(
        [
            {
                "name": COOKIE,
                "value": secret_of("page-1"),
                "url": world.gateway.url,
                "httpOnly": True,
                "sameSite": "Strict",
            }
        ]
    )
    await listener.listen({"all": {}})
    await listener.until_state("live")
    await world.produce({"n": 1})
    await listener.until("all.event")
    assert await listener.heard("all.error") == []
