"""/client.js in a real browser, against a gateway that is told what to do wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

from headgate.adapters.web_files import packaged_files
from headgate.model.http import Request, Response, Route
from headgate.services.gateway.public.web_files import WebFileRoutes
from tests.browser.listening import BLANK, BLANK_PATH, FILES, WAIT_MS, Listener
from tests.client.model_gateway import event
from tests.client.served_gateway import ServedGateway, served_gateway

if TYPE_CHECKING:
    from playwright.async_api import Page

QUIET_MS = 20_000
ANSWER_MS = 10_000
"""Those of client.js."""


async def free(_request: Request) -> Response:
    """A page of somebody else's, with no policy."""
    return Response(200, BLANK.content, "text/html")


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[ServedGateway]:
    files = WebFileRoutes(FILES, ws_url=lambda: made.ws_url)
    async with served_gateway([Route("GET", "/free", free), *files.table()]) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def listener(page: Page, gateway: ServedGateway) -> Listener:
    await page.goto(gateway.url + BLANK_PATH)
    return Listener(page)


async def test_several_subscriptions_share_a_connection(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"one": {}, "two": {"topic": "ships"}, "three": {}})
    await listener.until_state("live")
    gateway.append("flights", 3)
    gateway.append("ships", 2)
    await listener.until("one.event", 3)
    await listener.until("two.event", 2)
    assert await listener.seqs("three") == [1, 2, 3]
    assert gateway.opened == 1
    assert [one[0] for one in await listener.heard("state")] == ["connecting", "live"]


async def test_it_goes_on_where_it_was_when_the_connection_is_lost(
    listener: Listener, gateway: ServedGateway
) -> None:
    gateway.append("flights", 5)
    await listener.listen({"old": {"from": "earliest"}, "new": {}})
    await listener.until("old.event", 5)
    for reconnects in (1, 2, 3):
        gateway.drop_all()
        gateway.append("flights", 2)
        await listener.until("old.subscribed", 1 + reconnects)
        gateway.append("flights", 2)
    await listener.until("old.event", 17)
    await listener.until("new.event", 12)
    assert await listener.seqs("old") == list(range(1, 18))
    assert await listener.seqs("new") == list(range(6, 18))
    begun = await listener.heard("old.subscribed")
    assert [resumed for _, resumed in begun] == [False, True, True, True]
    assert gateway.mistakes == []


async def test_what_came_already_is_not_handed_out_again(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"all": {}})
    await listener.until_state("live")
    gateway.append("flights", 2)
    wire = gateway.sessions[0].wire
    wire.send(event("flights", 1, subscriptions=["s1"]))
    wire.send(event("flights", 1, subscriptions=["s1"], redelivery=True))
    wire.send(event("flights", 2, subscriptions=["s1", "s9"]))
    gateway.append("flights")
    await listener.until("all.event", 4)
    seen = [(one["seq"], one.get("redelivery", False)) for one in await listener.heard("all.event")]
    assert seen == [(1, False), (2, False), (1, True), (3, False)]


async def test_what_left_and_what_is_missing_is_told_in_its_place(
    listener: Listener, gateway: ServedGateway
) -> None:
    gateway.append("flights", 9)
    gateway.kept_from["flights"] = 8
    await listener.listen({"all": {"from": "earliest"}})
    await listener.until("all.event", 2)
    [resync] = await listener.heard("all.resync")
    assert (resync["after"], resync["from"], resync["reason"]) == (0, 8, "retention")
    gone = {**event("flights", 10, subscriptions=["s1"]), "type": "left"}
    gateway.sessions[0].wire.send(gone)
    [left] = await listener.until("all.left")
    assert left["seq"] == 10
    gateway.drop_all()
    await listener.until("all.subscribed", 2)
    assert gateway.requests[-1]["from"] == {"0": 11}


async def test_a_question_that_is_refused_ends_alone(
    listener: Listener, gateway: ServedGateway
) -> None:
    refusal = {"code": "invalid_filter", "message": "no", "details": {"position": 3}}
    gateway.refused["s1"] = refusal
    await listener.listen({"wrong": {"where": "a ="}, "right": {}})
    [error] = await listener.until("wrong.error")
    assert error == refusal
    await listener.until_state("live")
    gateway.append("flights")
    await listener.until("right.event")
    assert await listener.page.evaluate("subscriptions.wrong.state") == "ended"


async def test_what_may_pass_is_asked_again_over_the_same_connection(
    listener: Listener, gateway: ServedGateway
) -> None:
    gateway.refused["s1"] = {"code": "timeout", "message": "not now", "details": {}}
    await listener.listen({"all": {}})
    await listener.until_reason("not now")
    gateway.refused.clear()
    await listener.until("all.subscribed")
    await listener.until_state("live")
    assert gateway.opened == 1
    assert await listener.heard("all.error") == []


async def test_what_was_to_be_asked_again_is_asked_once_on_a_new_connection(
    page: Page, gateway: ServedGateway
) -> None:
    await page.add_init_script("Math.random = () => 0")  # no pause is longer than it has to be
    await page.clock.install(time=0)
    await page.goto(gateway.url + BLANK_PATH)
    await page.clock.pause_at(60_000)  # from now on timers end when they are told to
    listener = Listener(page)
    gateway.refused["s1"] = {"code": "timeout", "message": "not now", "details": {}}
    await listener.listen({"all": {}, "other": {}})
    await listener.until_reason("not now")
    await listener.until("other.subscribed")
    gateway.refused.clear()
    gateway.silent.add("s1")
    before = len(gateway.requests)
    gateway.drop_all()
    await page.wait_for_function("() => headgate.state === 'waiting'", timeout=WAIT_MS)
    await page.clock.run_for(60)  # it connects again after 50 ms; the old one would ask after 100
    await listener.until("other.subscribed", 2)
    await page.clock.run_for(1_000)
    gateway.answer("s1")
    await listener.until_state("live")
    asked = [one["id"] for one in gateway.requests[before:] if one["type"] == "subscribe"]
    assert asked.count("s1") == 1


async def test_a_gateway_that_falls_silent_is_asked_and_then_left(
    page: Page, gateway: ServedGateway
) -> None:
    await page.clock.install()
    await page.goto(gateway.url + BLANK_PATH)
    listener = Listener(page)
    await listener.listen({"all": {}})
    await listener.until_state("live")
    await page.clock.run_for(QUIET_MS)
    await page.clock.run_for(ANSWER_MS)
    await page.clock.run_for(1_000)
    await listener.until("all.subscribed", 2)
    assert "ping" in [one["type"] for one in gateway.requests]
    assert ["waiting", "the gateway doesn't answer any more"] in await listener.heard("state")


async def test_pauses_grow_while_nobody_answers(page: Page, gateway: ServedGateway) -> None:
    await page.clock.install()
    await page.goto(gateway.url + BLANK_PATH)
    listener = Listener(page)
    gateway.cut_off = 1_000
    await listener.listen({"all": {}})
    attempts = []
    for _ in range(8):
        before = gateway.opened
        await page.clock.run_for(5_000)
        await page.wait_for_function("() => headgate.state === 'waiting'", timeout=WAIT_MS)
        attempts.append(gateway.opened - before)
    assert sum(attempts) < 30
    gateway.cut_off = 0
    await page.clock.run_for(5_000)
    await listener.until_state("live")


async def test_a_page_is_sent_to_where_it_belongs(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.page.goto(f"{gateway.url}/free")
    away = {"type": "redirect", "url": gateway.ws_url, "gateway": "gateway-2", "id": "me"}
    dead = {"type": "redirect", "url": "ws://127.0.0.1:9/v1/subscribe", "gateway": "gateway-3"}
    gateway.redirect = [dict(away), dict(dead)]
    await listener.listen({"all": {}})
    await listener.until_state("live")
    assert gateway.opened == 3


async def test_an_error_of_a_handler_stops_nothing(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"all": {}})
    await listener.page.evaluate(
        """() => {
          window.wrong = [];
          addEventListener("error", (event) => (wrong.push(event.message), event.preventDefault()));
          headgate.subscribe("flights", { onEvent: () => { throw new Error("mine"); } });
        }"""
    )
    await listener.until_state("live")
    gateway.append("flights", 2)
    await listener.until("all.event", 2)
    assert len(await listener.page.evaluate("wrong")) == 2
    await listener.page.evaluate("heard.length = 0")


async def test_whoever_closes_hears_nothing_more(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"one": {}, "two": {}})
    await listener.until_state("live")
    await listener.page.evaluate("subscriptions.one.close()")
    gateway.append("flights")
    await listener.until("two.event")
    assert await listener.heard("one.event") == []
    await listener.page.evaluate("headgate.close()")
    await listener.until_state("closed")
    tried = (
        "() => { try { headgate.subscribe('flights'); } catch ({ message }) { return message; } }"
    )
    assert await listener.page.evaluate(tried) == "this Headgate was closed"


async def test_without_a_subscription_there_is_no_connection(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"all": {}})
    await listener.until_state("live")
    await listener.page.evaluate("subscriptions.all.close()")
    await listener.until_state("idle")
    await listener.page.evaluate("listen('again', {})")
    await listener.until_state("live")
    assert gateway.opened == 2


async def test_whoever_subscribes_anew_keeps_the_connection(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"all": {}})
    await listener.until_state("live")
    await listener.page.evaluate("subscriptions.all.close(); listen('again', {})")
    await listener.until("again.subscribed")
    await listener.until_state("live")
    assert gateway.opened == 1


async def test_a_place_can_be_kept_over_a_reload(
    listener: Listener, gateway: ServedGateway
) -> None:
    await listener.listen({"all": {}})
    await listener.until_state("live")
    gateway.append("flights", 3)
    await listener.until("all.event", 3)
    place = await listener.page.evaluate("subscriptions.all.next")
    await listener.page.reload()
    gateway.append("flights", 2)
    await listener.listen({"all": {"from": place}})
    await listener.until("all.event", 2)
    assert await listener.seqs("all") == [4, 5]


async def test_what_came_is_acknowledged(page: Page, gateway: ServedGateway) -> None:
    await page.clock.install()
    await page.goto(gateway.url + BLANK_PATH)
    listener = Listener(page)
    await listener.listen({"all": {}})
    await listener.until_state("live")
    gateway.append("flights", 5)
    await listener.until("all.event", 5)
    await page.clock.run_for(1_000)
    await listener.page.evaluate("headgate.close()")
    acks = [one for one in gateway.requests if one["type"] == "ack"]
    assert acks == [{"type": "ack", "subscription": "s1", "positions": {"0": 5}}]
    assert gateway.mistakes == []


async def test_a_token_is_said_first_and_renewed_before_it_ends(
    page: Page, gateway: ServedGateway
) -> None:
    await page.clock.install(time=1_000)
    await page.goto(gateway.url + BLANK_PATH)
    listener = Listener(page)
    gateway.known = {"mine-1": 1_020_000, "mine-2": None}
    await listener.listen({"all": {}}, token="mine")
    await listener.until_state("live")
    await page.clock.run_for(17_000)
    gateway.append("flights")
    await listener.until("all.event")
    said = [one.get("token", one["type"]) for one in gateway.requests if one["type"] != "ping"]
    assert said[:3] == ["mine-1", "subscribe", "mine-2"]
    assert (gateway.opened, gateway.mistakes) == (1, [])


async def test_a_clock_that_is_ahead_has_no_token_renewed_each_second(
    page: Page, gateway: ServedGateway
) -> None:
    await page.clock.install(time=5_000_000)
    await page.goto(gateway.url + BLANK_PATH)
    listener = Listener(page)
    gateway.known = {f"mine-{number}": 1_020_000 for number in range(1, 30)}
    await listener.listen({"all": {}}, token="mine")
    await listener.until_state("live")
    await page.clock.run_for(15_000)
    assert await page.evaluate("tokens") == 1
    await page.clock.run_for(50_000)
    gateway.append("flights")
    await listener.until("all.event")
    assert await page.evaluate("tokens") == 2


async def test_a_token_that_ended_is_followed_by_another(
    listener: Listener, gateway: ServedGateway
) -> None:
    gateway.known = {"mine-1": None, "mine-2": None}
    await listener.listen({"all": {}}, token="mine")
    await listener.until_state("live")
    ended = {"code": "unauthorized", "message": "revoked", "details": {}}
    gateway.sessions[0].wire.send({"type": "error", "error": ended})
    gateway.append("flights")
    await listener.until("all.event")
    await listener.until_state("live")
    assert await listener.page.evaluate("tokens") == 2


async def test_whom_nobody_knows_is_told_so_in_the_end(
    listener: Listener, gateway: ServedGateway
) -> None:
    gateway.known = {"another": None}
    await listener.listen({"all": {}}, token="mine")
    [error] = await listener.until("all.error")
    assert error["code"] == "unauthorized"
    assert await listener.page.evaluate("tokens") == 3
    await listener.until_state("idle")


async def test_while_nobody_answers_no_way_counts_as_blocked(
    listener: Listener, gateway: ServedGateway
) -> None:
    page = listener.page
    await listener.listen({"all": {}})
    await listener.until_state("live")
    await page.route("**/v1/gateway", lambda route: route.abort())
    gateway.drop_all()
    await page.wait_for_function(
        "() => heard.filter(([, state]) => state === 'waiting').length > 3", timeout=WAIT_MS
    )
    await page.unroute("**/v1/gateway")
    await listener.until_state("live")
    assert gateway.opened == 2


async def test_a_page_that_is_left_open_keeps_nothing(
    listener: Listener, gateway: ServedGateway
) -> None:
    page = listener.page
    await page.evaluate(
        """async () => {
          const { Headgate } = await import("/client.js");
          window.count = 0;
          window.headgate = new Headgate(undefined, {});
          headgate.subscribe("flights", { onEvent: () => (count += 1) });
        }"""
    )
    await listener.until_state("live")
    devtools = await page.context.new_cdp_session(page)

    async def heap_after(count: int) -> float:
        gateway.append("flights", count)
        wanted = gateway.logs["flights"]
        await page.wait_for_function("(wanted) => count === wanted", arg=wanted, timeout=30_000)
        await devtools.send("HeapProfiler.collectGarbage")
        usage = await devtools.send("Runtime.getHeapUsage")
        return float(usage["usedSize"])

    await heap_after(1_000)
    before = await heap_after(1_000)
    assert await heap_after(20_000) - before < 200_000


async def test_the_types_name_what_is_there(listener: Listener) -> None:
    types = packaged_files()["client.d.ts"].content.decode()
    found = await listener.page.evaluate(
        """async () => {
          const found = await import("/client.js");
          return Object.fromEntries(Object.entries(found).map(([name, made]) => [
            name, Object.getOwnPropertyNames(made.prototype).filter((one) => !one.startsWith("_")),
          ]));
        }"""
    )
    assert set(found) == {"Headgate", "HeadgateError", "Subscription"}
    for name, members in found.items():
        declared = types.partition(f"export class {name} ")[2].partition("\n}")[0]
        assert declared, name
        assert [one for one in members if one not in declared] == []
