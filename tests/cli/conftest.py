"""A small Headgate that the commands can talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cli.operated import OperatedServer, operated_server
from tests.client.producing.produce_server import ProduceServer, produce_server


@pytest.fixture
async def server() -> AsyncIterator[ProduceServer]:
    async with produce_server() as running:
        running.add_topic("flights")
        yield running


@pytest.fixture
async def operated() -> AsyncIterator[OperatedServer]:
    async with operated_server() as running:
        yield running
