"""Makes the pictures of the dashboard that docs/ has: `make screenshots`.

A small system of its own on free ports, with what the demo shows, looked at in a headless browser.
The pictures are for people: they are made when a page looks otherwise, and compared with nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from headgate.client import Producer, Subscriber
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
    "subscriptions": ("subscriptions", "light"),
    "letters": ("letters", "light"),
    "nodes": ("nodes", "dark"),
    "connectors": ("connectors", "light"),
}
DEMO = {
    "demo": (WIDE, "light"),
    "demo-dark": (WIDE, "dark"),
    "demo-narrow": (NARROW, "light"),
}
DEMO_FLIES_MS = 8_000
"""Until every aircraft has reported."""
READY_S = 120.0
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


async def picture(browser: Browser, url: str, name: str) -> None:
    where, scheme = PAGES[name.removesuffix("-narrow")]
    is_narrow = name.endswith("-narrow")
    context = await browser.new_context(
        viewport=NARROW if is_narrow else WIDE,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=1,
    )
    page = await context.new_page()
    await page.goto(f"{url}/ui/#/{where}")
    await page.locator("#link", has_text="live").wait_for()
    await page.wait_for_timeout(SETTLE_MS if "overview" not in name else WARM_UP_S * 1_000)
    await page.screenshot(path=FOLDER / f"{name}.png")
    await context.close()


async def of_the_demo(browser: Browser) -> None:
    """Its page, which only `headgate demo` has."""
    command = [sys.executable, "-m", "headgate", "demo", "--seconds", "600"]
    demo = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(READY_S):
            while "in a browser: " not in (line := (await demo.stdout.readline()).decode()):
                assert line, "headgate demo ended before it was ready"
        for name, (size, scheme) in DEMO.items():
            context = await browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page = await context.new_page()
            await page.goto(line.rpartition(" ")[2].strip())
            await page.locator("#connection", has_text="live").wait_for()
            await page.wait_for_timeout(DEMO_FLIES_MS)
            await page.screenshot(path=FOLDER / f"{name}.png")
            await context.close()
    finally:
        demo.terminate()
        await demo.wait()


async def make(url: str) -> None:
    program = find_chromium()
    if program is None:
        sys.exit(HOW_TO_GET_ONE)
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        narrow = [f"{name}-narrow" for name in ("overview", "records")]
        for name in [*PAGES, *narrow]:
            await picture(browser, url, name)
        await of_the_demo(browser)
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


async def pictures(url: str | None) -> None:
    if url is not None:
        await make(url)
        return
    async with small_system() as started:
        await make(started)


if __name__ == "__main__":
    asyncio.run(pictures(sys.argv[1] if len(sys.argv) > 1 else None))
