"""One store per test, on every adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.stores import CHECKPOINTS, COORDINATION, WRITERS, Opened


@pytest.fixture(params=sorted(WRITERS))
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    opened = Opened(request.param, str(tmp_path / "data"))
    yield opened
    await opened.close()


@pytest.fixture(params=sorted(CHECKPOINTS))
async def positions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    opened = Opened(request.param, str(tmp_path / "data"))
    yield opened
    await opened.close()


@pytest.fixture(params=sorted(COORDINATION))
async def cluster_state(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    opened = Opened(request.param, str(tmp_path / "data"))
    yield opened
    await opened.close()
