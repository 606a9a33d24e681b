"""The demo's page in a real browser: aircraft as its subscription sees them, books and buttons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from headgate import errors
from headgate.adapters.web_files import packaged_files
from headgate.decide.groups.targets import target_of
from headgate.demo.aircraft import Fleet
from headgate.demo.page.booth import Booth
from headgate.demo.page.dares import DARES, Dare, Told
from headgate.demo.view import ConsumerView, RoleView, SubscriberView, View
from tests.services.gateway.access import knowing, token
from tests.services.gateway.world import World, running

if TYPE_CHECKING:
    from playwright.async_api import Page

WAIT_MS = 10_000
WICKED = "<img src=x onerror=alert(1)>\u202e\u0007" + "x" * 200
VIEW = View(
    "",
    "producing",
    12.0,
    None,
    1_000,
    200.0,
    1_234,
    230.0,
    3,
    0,
    0,
    1.25,
    45.0,
    1,
    2,
    subscribers=(SubscriberView("low", "altitude < 3000", 10, 10, 1.0),),
    roles=(RoleView("gateway", 4711), RoleView("router", None)),
)
TEAM = tuple(ConsumerView(f"consumer-{n}", (n,), 100 * n, 10.0, left=False) for n in range(3))


@dataclass
class FakeDares:
    left_out: int = 0
    again: int = 0
    taken: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    has_taken: asyncio.Event = field(default_factory=asyncio.Event)

    def list(self) -> list[Dare]:
        busy = [replace(one, under_way="now") if one.name in self.taken else one for one in DARES]
        return list(busy)

    def take(self, name: str) -> None:
        if name in self.taken:
            raise errors.NotNow("under way")
        self.taken.append(name)
        self.has_taken.set()


@dataclass
class Shown:
    page: Page
    world: World
    booth: Booth
    dares: FakeDares
    fleet: Fleet = field(default_factory=lambda: Fleet(seed=1, count=20))

    def show(self, **changes: Any) -> None:
        self.booth.show(replace(VIEW, **changes))

    async def fly(self, time_s: float = 0.0, **changes: Any) -> None:
        for number in range(len(self.fleet)):
            report = self.fleet.report(number, time_s)
            document = {name: getattr(report, name) for name in report.__struct_fields__}
            self.world.log.append({**document, **changes}, key=report.icao, partition=number % 2)
        await self.world.lanes.run()

    async def until(self, selector: str, text: str) -> None:
        await self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
            arg=[selector, text],
            timeout=WAIT_MS,
        )


def keyed(key: str) -> Any:
    return SimpleNamespace(key=key, collection="", event_id="")


@pytest_asyncio.fixture(loop_scope="session")
async def shown(page: Page) -> AsyncIterator[Shown]:
    async with AsyncExitStack() as stack:
        booth, dares = Booth(), FakeDares()
        await booth.start()
        stack.push_async_callback(booth.stop)
        files = packaged_files()
        world = await stack.enter_async_context(running(web_files=files, demo=booth.url))
        taking: Any = dares
        booth.begin(world.gateway.url, taking)
        made = Shown(page, world, booth, dares)
        made.show()
        await page.goto(f"{world.gateway.url}/ui/demo")
        await made.until("#connection", "live")
        yield made


async def test_aircraft_are_where_their_reports_say(shown: Shown) -> None:
    await shown.fly()
    await shown.until("#aircraft", "20")
    await shown.until("#matches", "20")
    crafts = shown.page.locator("#map .craft")
    assert await crafts.count() == 20
    first = await crafts.first.get_attribute("transform")
    await shown.fly(600.0)
    await shown.until("#matches", "40")
    assert await crafts.count() == 20
    assert await crafts.first.get_attribute("transform") != first


async def test_a_filter_takes_over_when_it_has_begun_and_a_wrong_one_changes_nothing(
    shown: Shown,
) -> None:
    page = shown.page
    await shown.fly()
    await shown.until("#aircraft", "20")
    await page.fill("#filter", "altitude < ")
    await shown.until("#filter-error", "expected")
    assert await page.text_content("#filter-place") == " " * 11 + "^"
    assert await page.get_attribute("#filter", "aria-invalid") == "true"
    assert await page.text_content("#aircraft") == "20"
    await page.click('#examples button[data-where="altitude < 3000"]')
    await shown.until("#filter-error", "subscribed")
    await shown.until("#aircraft", "0")
    await shown.fly(altitude=2_000)
    await shown.until("#aircraft", "20")
    assert await page.get_attribute("#filter", "aria-invalid") == "false"


async def test_in_a_secured_demo_it_says_where_to_log_in(page: Page) -> None:
    guarded = running(
        web_files=packaged_files(),
        demo="http://127.0.0.1:1",
        make_principals=lambda machine: knowing(machine, token("ann", "subscribe")),
    )
    async with guarded as world:
        await page.goto(f"{world.gateway.url}/ui/demo")
        await page.locator("#filter-error", has_text="log in at http").wait_for()


async def test_what_a_document_says_is_text(shown: Shown) -> None:
    await shown.fly(callsign=WICKED)
    await shown.until("#aircraft", "20")
    await shown.page.locator("#map .craft").first.dispatch_event("click")
    await shown.until("#selected", "<img src=x")
    assert await shown.page.locator("#selected img").count() == 0
    assert await shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_books_stay_green_while_they_are_zero(shown: Shown) -> None:
    await shown.until("#delivered", "1,234")
    assert await shown.page.text_content("#lost") == "0"
    green = await shown.page.evaluate("getComputedStyle(lost).color")
    shown.dares.left_out = 2
    shown.show(out_of_order=1)
    await shown.until("#lost", "2")
    assert await shown.page.evaluate("getComputedStyle(lost).color") != green
    await shown.until("#out-of-order", "1")
    await shown.until("#roles", "being started again")


async def test_a_button_hurts_once_at_a_time(shown: Shown) -> None:
    for dare in DARES:
        button = shown.page.locator(f'[data-dare="{dare.name}"]')
        await button.click()
        async with asyncio.timeout(WAIT_MS / 1_000):
            await shown.dares.has_taken.wait()
        shown.dares.has_taken.clear()
        shown.show()
        await shown.page.wait_for_function(
            "(name) => document.querySelector(`[data-dare=${name}]`).disabled",
            arg=dare.name,
            timeout=WAIT_MS,
        )
    assert shown.dares.taken == [dare.name for dare in DARES]
    shown.dares.told.append(Told(1, 3.5, WICKED))
    shown.show()
    await shown.until("#told", "<img src=x")
    assert await shown.page.locator("#told img").count() == 0


async def test_consumers_have_the_colour_of_whose_targets_they_own(shown: Shown) -> None:
    shown.show(consumers=TEAM, targets=3, subscribers=())
    await shown.until("#legend", "consumer-2")
    await shown.fly()
    await shown.until("#aircraft", "20")
    found = await shown.page.evaluate(
        """() => [...document.querySelectorAll("#map .craft")].map((one) =>
             [one.dataset.key, one.querySelector("path").getAttribute("class")])"""
    )
    assert dict(found) == {key: f"series-{target_of(keyed(key), 3) + 1}" for key, _ in found}
    shown.show(consumers=TEAM[:1], targets=3, subscribers=())
    await shown.page.wait_for_function(
        """() => [...document.querySelectorAll("#map .craft path")]
             .some((one) => one.getAttribute("class") === "")""",
        timeout=WAIT_MS,
    )


async def test_it_says_when_it_is_cut_off_and_when_the_demo_has_ended(shown: Shown) -> None:
    page = shown.page
    await page.route("**/v1/gateway", lambda route: route.abort())
    for connection in tuple(shown.world.gateway._websocket.connections):
        connection.abort()
    await shown.until("#connection", "not connected: nobody answers at")
    await page.unroute("**/v1/gateway")
    await shown.until("#connection", "live")
    await shown.booth.stop()
    await page.wait_for_selector("#dares-away:not([hidden])", timeout=WAIT_MS)
    assert await page.locator("#dares button:not(:disabled)").count() == 0


async def test_it_can_be_used_with_the_keyboard_and_on_a_phone(shown: Shown) -> None:
    page = shown.page
    await page.set_viewport_size({"width": 375, "height": 700})
    assert await page.evaluate("document.documentElement.scrollWidth") == 375
    await page.focus("#filter")
    reached = []
    for _ in range(len(DARES) + 8):
        await page.keyboard.press("Tab")
        name = "document.activeElement.dataset.dare ?? document.activeElement.dataset.where"
        reached.append(await page.evaluate(name))
    assert [one for one in reached if one in {dare.name for dare in DARES}] == [
        dare.name for dare in DARES
    ]


async def test_a_page_that_is_left_open_keeps_nothing_but_its_aircraft(shown: Shown) -> None:
    devtools = await shown.page.context.new_cdp_session(shown.page)
    rounds = 0

    async def heap_after(more: int) -> float:
        nonlocal rounds
        for _ in range(more):
            await shown.fly(60.0 * rounds)
            shown.show(produced=rounds)
            rounds += 1
        await shown.until("#matches", f"{rounds * len(shown.fleet):,}")
        await devtools.send("HeapProfiler.collectGarbage")
        return float((await devtools.send("Runtime.getHeapUsage"))["usedSize"])

    await heap_after(20)
    before = await heap_after(20)
    grown = await heap_after(250) - before
    assert grown < 200_000  # 5,000 reports that were kept would be 400,000
    assert await shown.page.locator("#map .craft").count() == len(shown.fleet)
