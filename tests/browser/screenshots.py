"""Makes the pictures of the dashboard that docs/ has: `make screenshots`.

A small system of its own on free ports, with what the demo shows, looked at in a headless browser.
The pictures are for people: they are made when a page looks otherwise, and compared with nothing.
`make screenshots ALL=FOLDER` puts every page, light, dark and narrow, into another folder, to be
looked at and thrown away; whole pages, so that nothing hides below the edge.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from headgate.client import Consumer, Event, Producer, Subscriber
from headgate.client.http import HttpClient
from headgate.model.api import CreateTopic, TopicInfo
from headgate.model.topology import Placement
from headgate.tasks import Helpers
from tests.browser.chromium import ARGUMENTS, HOW_TO_GET_ONE, find_chromium

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
WIDE, NARROW = {"width": 1120, "height": 760}, {"width": 375, "height": 760}
SETTLE_MS = 2_500
WARM_UP_S = 30.0
"""So that the curves of the overview have something to show."""
PAGES = {
    "overview": ("overview", "light"),
    "overview-dark": ("overview", "dark"),
    "topology": ("topology", "light"),
    "topology-dark": ("topology", "dark"),
    "topics": ("topics", "light"),
    "partitions": ("topics/flights", "light"),
    "records": ("topics/flights/records?where=altitude%20%3E%2010000", "light"),
    "record": ("topics/flights/records?where=altitude%20%3E%2010000", "light"),
    "subscriptions": ("subscriptions", "light"),
    "group": ("groups/flights/radar", "light"),
    "letters": ("letters", "light"),
    "nodes": ("nodes", "dark"),
    "connectors": ("connectors", "light"),
}
IN_DOCS = [name for name in PAGES if name not in ("record", "group", "connectors")]
"""The others show less than those, or nothing: no database is connected here."""
DEMO = {
    "demo": (False, "light"),
    "demo-dark": (False, "dark"),
    "demo-narrow": (True, "light"),
}
LOOKS = (("light", False, "light"), ("dark", False, "dark"), ("narrow", True, "light"))
DEMO_FLIES_MS = 8_000
"""Until every aircraft has reported."""
READY_S = 120.0
TOO_HIGH = 39_900
TOPICS: dict[str, tuple[int, Placement]] = {
    "flights": (4, "keyed"),
    "ships": (2, "keyed"),
    "jobs": (2, "opportunistic"),
}
FILTERS = (
    ("flights", None),
    ("flights", "altitude > 10000"),
    ("flights", 'country == "CH"'),
    ("ships", "knots > 20"),
)


@contextlib.asynccontextmanager
async def looking(browser: Browser, *, is_narrow: bool, scheme: str) -> AsyncIterator[Page]:
    context = await browser.new_context(
        viewport=NARROW if is_narrow else WIDE,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=1,
    )
    yield await context.new_page()
    await context.close()


async def see(page: Page, url: str, name: str, *, settle_ms: float = SETTLE_MS) -> None:
    await page.goto(f"{url}/ui/#/{PAGES[name][0]}")
    await page.locator("#link", has_text="live").wait_for()
    if name == "record":
        await page.locator("main .virtual-row .virtual-row, main .virtual-space > *").first.click()
        await page.get_by_role("button", name="Who got it, and why?").click()
    await page.wait_for_timeout(settle_ms)


async def picture(browser: Browser, url: str, name: str) -> None:
    page_name = name.removesuffix("-narrow")
    is_narrow, scheme = name.endswith("-narrow"), PAGES[page_name][1]
    async with looking(browser, is_narrow=is_narrow, scheme=scheme) as page:
        settle_ms = WARM_UP_S * 1_000 if "overview" in page_name else SETTLE_MS
        await see(page, url, page_name, settle_ms=settle_ms)
        await page.screenshot(path=FOLDER / f"{name}.png")


async def every_picture(browser: Browser, url: str, folder: Path) -> None:
    names = [name for name in PAGES if not name.endswith("-dark")]
    for look, is_narrow, scheme in LOOKS:
        async with looking(browser, is_narrow=is_narrow, scheme=scheme) as page:
            for name in names:
                await see(page, url, name)
                await page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)


@contextlib.asynccontextmanager
async def demo_page() -> AsyncIterator[str]:
    """Its address, which only `headgate demo` has."""
    command = [sys.executable, "-m", "headgate", "demo", "--seconds", "600"]
    demo = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(READY_S):
            while "in a browser: " not in (line := (await demo.stdout.readline()).decode()):
                assert line, "headgate demo ended before it was ready"
        yield line.rpartition(" ")[2].strip()
    finally:
        demo.terminate()
        await demo.wait()


async def of_the_demo(browser: Browser, folder: Path) -> None:
    async with demo_page() as url:
        for name, (is_narrow, scheme) in DEMO.items():
            async with looking(browser, is_narrow=is_narrow, scheme=scheme) as page:
                await page.goto(url)
                await page.locator("#connection", has_text="live").wait_for()
                await page.wait_for_timeout(DEMO_FLIES_MS)
                await page.screenshot(path=folder / f"{name}.png")


async def of_docs(browser: Browser, url: str) -> None:
    for name in [*IN_DOCS, "overview-narrow", "records-narrow"]:
        await picture(browser, url, name)


async def make(url: str, everything: Path | None) -> None:
    program = find_chromium()
    if program is None:
        sys.exit(HOW_TO_GET_ONE)
    folder = everything or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        if everything is None:
            await of_docs(browser, url)
        else:
            await every_picture(browser, url, folder)
        await of_the_demo(browser, folder)
        await browser.close()


@contextlib.asynccontextmanager
async def small_system() -> AsyncIterator[str]:
    """`headgate up` with some topics, producers and subscribers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headgate", "up", "--port", "0", "--data", folder]
        up = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert up.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                while not (line := (await up.stdout.readline()).decode()).startswith("ready "):
                    assert line, "headgate up ended before it was ready"
            url = line.split()[1]
            async with HttpClient(url) as client:
                for name, (partitions, placement) in TOPICS.items():
                    topic = CreateTopic(name, partitions, placement)
                    await client.post("/v1/topics", topic, TopicInfo)
            async with Helpers() as helpers:
                helpers.start(produce(url))
                for topic_name, where in FILTERS:
                    helpers.start(listen(url, topic_name, where))
                helpers.start(consume(url))
                yield url
        finally:
            up.terminate()
            await up.wait()


async def produce(url: str) -> None:
    chance = random.Random(1)
    async with Producer(url) as producer:
        while True:
            number = chance.randrange(400)
            flight = {
                "icao": f"{number:06x}",
                "callsign": f"HG{number}",
                "altitude": chance.randrange(40_000),
                "country": chance.choice(["CH", "FR", "SE"]),
            }
            await producer.send("flights", flight, key=str(flight["icao"]))
            if number % 3 == 0:
                ship = {"name": f"ship {number}", "knots": chance.randrange(30)}
                await producer.send("ships", ship, key=str(ship["name"]))
            if number % 9 == 0:
                await producer.send("jobs", {"number": number})
            await asyncio.sleep(0.005)


async def listen(url: str, topic: str, where: str | None) -> None:
    async with Subscriber(url, topic, where=where) as subscriber:
        async for _ in subscriber:
            pass


async def consume(url: str) -> None:
    """Whatever flies very high can't be worked on, and becomes a letter."""
    async with Consumer(url, "flights", "radar", acks="manual", max_deliveries=1) as consumer:
        async for item in consumer:
            if isinstance(item, Event):
                if item.document["altitude"] > TOO_HIGH:
                    await consumer.nack(item)
                else:
                    await consumer.acknowledge(item)


async def pictures(url: str | None, everything: Path | None) -> None:
    if url is not None:
        await make(url, everything)
        return
    async with small_system() as started:
        await make(started, everything)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--all", type=Path, metavar="FOLDER", dest="everything")
    given = parser.parse_args()
    asyncio.run(pictures(given.url, given.everything))
