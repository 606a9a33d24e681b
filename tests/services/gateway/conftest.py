from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.services.gateway.world import World, running


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made
