"""One store per test, on every adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contracts.stores import (
    CHECKPOINTS,
    COORDINATION,
    LETTERS,
    WRITERS,
    Opened,
    on_etcd,
    on_mongodb,
    on_postgres,
)
from tests.servers.etcd import Etcd
from tests.servers.mongodb import MongoReplicaSet, collect_sockets
from tests.servers.postgres import Postgres


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Once the test's event loop is gone too, which may hold on to what is to be collected."""
    done = yield
    if "mongodb" in item.name or "replica_set" in getattr(item, "fixturenames", ()):
        collect_sockets()
    return done


@pytest.fixture(params=sorted(WRITERS))
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    location = str(tmp_path / "data")
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        location = on_postgres(f"Log-{uuid4().hex[:12]}", server.dsn)
    opened = Opened(request.param, location)
    yield opened
    await opened.close()


@pytest.fixture(params=sorted(LETTERS))
async def letters(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    location = str(tmp_path / "data")
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        location = on_postgres(f"Letters-{uuid4().hex[:12]}", server.dsn)
    opened = Opened(request.param, location)
    yield opened
    await opened.close()


@pytest.fixture(params=sorted(CHECKPOINTS))
async def positions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    location = str(tmp_path / "data")
    if request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd")
        location = on_etcd(f"/contract-{uuid4().hex[:12]}", etcd.endpoint)
    if request.param == "mongodb":
        mongodb: MongoReplicaSet = request.getfixturevalue("mongodb")
        location = on_mongodb(f"contract-{uuid4().hex[:12]}", mongodb.url)
    opened = Opened(request.param, location)
    yield opened
    await opened.close()


@pytest.fixture(params=sorted(COORDINATION))
async def cluster_state(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    location = str(tmp_path / "data")
    if request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd")
        location = on_etcd(f"/contract-{uuid4().hex[:12]}", etcd.endpoint)
    opened = Opened(request.param, location)
    yield opened
    await opened.close()
