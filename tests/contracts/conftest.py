"""One store per test, on every adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contracts.stores import CHECKPOINTS, COORDINATION, WRITERS, Opened, on_postgres
from tests.servers.postgres import Postgres


@pytest.fixture(params=sorted(WRITERS))
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    location = str(tmp_path / "data")
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        location = on_postgres(f"Log-{uuid4().hex[:12]}", server.dsn)
    opened = Opened(request.param, location)
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
