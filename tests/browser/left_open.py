"""Pages that are left open: what they hold after an hour is what they held after minutes.

    python -m tests.browser.left_open [--minutes 60] [--url ADDRESS]

The dashboard's overview, its topology, the records of a topic as they come, and the demo's way of
following (`/client.js`) are open in one browser, in front of a small system under load. Each minute
the browser's garbage is collected and counted. It ends with code 1 when the last third holds more
than the first third did after its start: a fifth more, and a megabyte, or a fifth more elements.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from playwright.async_api import CDPSession, Page, async_playwright

from tests.browser.chromium import ARGUMENTS, HOW_TO_GET_ONE, find_chromium
from tests.browser.screenshots import small_system

PAGES = ("overview", "topology", "topics/flights/records?start=live", "subscriptions")
FOLLOWS = """async (address) => {
  const { Headgate } = await import("/client.js");
  window.count = 0;
  window.headgate = new Headgate(address);
  window.headgate.subscribe("flights", { onEvent: () => (window.count += 1) });
}"""
SAMPLES = 30
WARMED_UP = 0.1
"""The part of the time in which a page fills what it has room for, which isn't counted."""
GROWTH = 1.2
SLACK_BYTES = 1_000_000
SLACK_ELEMENTS = 200


say = print
"""What the command says."""


@dataclass(frozen=True, slots=True)
class Sample:
    heap_bytes: int
    elements: int


@dataclass(slots=True)
class Open:
    """A page, what looks into it, and what was seen."""

    name: str
    page: Page
    session: CDPSession
    samples: list[Sample]

    async def look(self) -> None:
        await self.session.send("HeapProfiler.collectGarbage")
        told = await self.session.send("Performance.getMetrics")
        found = {one["name"]: one["value"] for one in told["metrics"]}
        self.samples.append(Sample(int(found["JSHeapUsedSize"]), int(found["Nodes"])))


def grown(samples: Sequence[Sample]) -> str:
    """What is wrong with them; empty where nothing is. The least of a third counts, as something is
    always about to be collected."""
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]
    heap = [min(one.heap_bytes for one in some) for some in (first, last)]
    elements = [min(one.elements for one in some) for some in (first, last)]
    if heap[1] > heap[0] * GROWTH + SLACK_BYTES:
        return f"holds {heap[1] / 1e6:.1f} MB, and held {heap[0] / 1e6:.1f}"
    if elements[1] > elements[0] * GROWTH + SLACK_ELEMENTS:
        return f"has {elements[1]:,} elements, and had {elements[0]:,}"
    return ""


async def left_open(url: str, minutes: float) -> list[str]:
    """What grew."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        context = await browser.new_context()
        opened = []
        for name in (*PAGES, "client.js"):
            page = await context.new_page()
            # Hidden pages don't draw, and all of these are to be looked at.
            await page.goto(f"{url}/ui/#/{name if name in PAGES else 'nodes'}")
            await page.locator("#link", has_text="live").wait_for()
            if name == "client.js":
                await page.evaluate(FOLLOWS, url)
            session = await context.new_cdp_session(page)
            await session.send("Performance.enable")
            await session.send("Emulation.setFocusEmulationEnabled", {"enabled": True})
            opened.append(Open(name, page, session, []))
        every_s = minutes * 60.0 / SAMPLES
        for number in range(SAMPLES + 1):
            await asyncio.sleep(every_s)
            if number < SAMPLES * WARMED_UP:
                continue
            for one in opened:
                await one.look()
            last = ", ".join(f"{one.samples[-1].heap_bytes / 1e6:.1f}" for one in opened)
            say(f"{(number + 1) * every_s / 60:5.1f} min: {last} MB", flush=True)
        followed = await opened[-1].page.evaluate("window.count")
        say(f"client.js was handed {followed:,} events")
        faults = [f"{one.name} {fault}" for one in opened if (fault := grown(one.samples))]
        if not followed:
            faults.append("client.js was handed nothing")
        await browser.close()
        return faults


@contextlib.asynccontextmanager
async def in_front_of(url: str) -> AsyncIterator[str]:
    if url:
        yield url
    else:
        async with small_system() as made:
            yield made


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--url", default="")
    given = parser.parse_args()
    if find_chromium() is None:
        sys.exit(HOW_TO_GET_ONE)
    async with in_front_of(given.url) as url:
        faults = await left_open(url, given.minutes)
    if faults:
        sys.exit("; ".join(faults))
    say("nothing grew")


if __name__ == "__main__":
    asyncio.run(main())
