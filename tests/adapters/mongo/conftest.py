"""One MongoDB of one member, shared by the tests that only use it; each has its own database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase

from tests.servers.mongodb import MongoReplicaSet, collect_sockets, why_missing

Database = AsyncDatabase[dict[str, Any]]

_NUMBERS = count(1)


@pytest.fixture(scope="session", autouse=True)
def _mongodb_runs_here() -> None:
    reason = why_missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lone_mongodb() -> Iterator[MongoReplicaSet]:
    with MongoReplicaSet(1) as server:
        yield server


@pytest.fixture
async def database(lone_mongodb: MongoReplicaSet) -> AsyncIterator[Database]:
    """Nobody else's, and new."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(lone_mongodb.url)
    yield client[f"test{next(_NUMBERS)}"]
    await client.close()
    collect_sockets()
