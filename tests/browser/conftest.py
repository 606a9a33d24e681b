from __future__ import annotations

import os
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.browser.chromium import ARGUMENTS, HOW_TO_GET_ONE, find_chromium
from tests.browser.watching import Watch

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

HERE = Path(__file__).parent
SESSION = pytest.mark.asyncio(loop_scope="session")
STARTING_MS = 60_000
"""A browser on a machine that is busy with everything else."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(SESSION, append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    program = find_chromium()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET_ONE, pytrace=False)
        pytest.skip(HOW_TO_GET_ONE)
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=program, args=ARGUMENTS, timeout=STARTING_MS
        )
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that nothing may go wrong on: an error that its code doesn't catch, or something that
    its policy forbids, fails the test."""
    context = await browser.new_context()
    made = await context.new_page()
    watch = Watch(made)
    yield made
    await context.close()
    assert watch.faults == []
