"""The page of docs/browser.md, as it stands there, from another origin than the gateway's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest_asyncio

from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.web_files import packaged_files
from headgate.answering import HttpApp
from headgate.demo.aircraft import Fleet
from headgate.model.http import Request, Response, Route
from tests.services.gateway.world import World, running

if TYPE_CHECKING:
    from playwright.async_api import Page

DOCUMENT = Path(__file__).parents[2] / "docs" / "browser.md"
WAIT_MS = 10_000


def example() -> bytes:
    found = re.search(r"```html\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert found is not None, "docs/browser.md has a page"
    return found[1].encode()


async def answer(_request: Request) -> Response:
    return Response(200, example(), "text/html; charset=utf-8")


@pytest_asyncio.fixture(loop_scope="session")
async def hosted() -> AsyncIterator[tuple[World, str]]:
    """A gateway that lets the page's origin in, and where the page is."""
    async with AsyncExitStack() as stack:
        server = Http1Server()
        port = await server.start(HttpApp([Route("GET", "/radar.html", answer)]), "127.0.0.1", 0)
        stack.push_async_callback(server.stop, 1.0)
        origin = f"http://127.0.0.1:{port}"
        files = packaged_files()
        world = await stack.enter_async_context(running(web_files=files, origins=(origin,)))
        yield world, f"{origin}/radar.html?headgate={world.gateway.url}"


def test_it_has_some_twenty_lines() -> None:
    assert len(example().splitlines()) <= 25


async def test_it_shows_the_low_flights_and_no_others(
    page: Page, hosted: tuple[World, str]
) -> None:
    world, address = hosted
    await page.goto(address)
    await page.get_by_text("live").wait_for(timeout=WAIT_MS)
    fleet = Fleet(seed=1, count=4)
    for number in range(4):
        report = fleet.report(number, 0.0)
        document = {name: getattr(report, name) for name in report.__struct_fields__}
        world.log.append({**document, "altitude": 2_000 * (number + 1)}, key=report.icao)
    await world.lanes.run()
    line = page.locator("#flights li")
    await line.first.wait_for(timeout=WAIT_MS)
    assert await line.count() == 1
    assert (await line.first.text_content() or "").endswith(": 2000 ft")
    assert await page.text_content("#count") == "1"


async def test_a_page_that_may_not_call_is_told_what_may_be_wrong(
    page: Page, hosted: tuple[World, str]
) -> None:
    _, address = hosted
    async with running(web_files=packaged_files()) as closed:
        module = f"{closed.gateway.url}/client.js"
        await page.goto(address)
        said = await page.evaluate(
            "(module) => import(module).then(() => 'in', (error) => error.message)", module
        )
        assert "Failed to fetch" in said
