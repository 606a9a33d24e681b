"""What `bench connector` reads of MongoDB: a backlog of changes, and a collection's documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from pymongo import AsyncMongoClient, ReplaceOne

from headgate.adapters.mongo.identity import position_of
from headgate.bench.connector.bare import BareRead
from headgate.bench.result import Failed
from headgate.demo.aircraft import Fleet
from headgate.demo.mongodb import connected
from headgate.model.connectors_api import CreateConnector, RouteInfo

DATABASE = "backlog"
COLLECTION = "flights"
ROWS_DATABASE = "rows"
"""Apart, so that the changes are those of the backlog alone."""
AIRCRAFT = 400
SEED = 1
WRITES = 1_000
"""In one request to MongoDB."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """`changes` behind `position`, and as many documents that nobody changes."""

    uri: str
    position: str
    changes: int

    @property
    def bare_changes(self) -> BareRead:
        return BareRead(self.uri, DATABASE, self.changes, position=self.position)

    @property
    def bare_rows(self) -> BareRead:
        return BareRead(self.uri, ROWS_DATABASE, self.changes, collection=COLLECTION)

    async def reading(self, name: str) -> CreateConnector:
        """A connector that reads the changes, into a topic of its name."""
        settings = {"uri": self.uri, "database": DATABASE}
        begin_at = f"position:{self.position}"
        return CreateConnector(name, "mongodb", settings, [RouteInfo(name)], begin_at)

    async def snapshot(self, name: str) -> CreateConnector:
        """A connector that reads the documents."""
        settings = {"uri": self.uri, "database": ROWS_DATABASE}
        return CreateConnector(name, "mongodb", settings, [RouteInfo(name)], snapshot=True)


async def backlog(uri: str, changes: int) -> Backlog:
    """Write it: reports of aircraft, each replaces the one before it."""
    client = connected(uri)
    try:
        await _fill(client, changes)
        async with await client[DATABASE].watch() as stream:
            await stream.try_next()
            token = stream.resume_token
        if token is None:
            raise Failed("MongoDB doesn't say where its stream stands")
        fleet = Fleet(seed=SEED, count=AIRCRAFT)
        collection = client[DATABASE][COLLECTION]
        for begin in range(0, changes, WRITES):
            numbers = range(begin, min(begin + WRITES, changes))
            reports = [(number, fleet.report(number, number / 10)) for number in numbers]
            await collection.bulk_write(
                [
                    ReplaceOne(
                        {"_id": report.icao},
                        {**msgspec.structs.asdict(report), "number": number},
                        upsert=True,
                    )
                    for number, report in reports
                ]
            )
    finally:
        await client.close()
    return Backlog(uri, position_of(dict(token)), changes)


async def _fill(client: AsyncMongoClient[dict[str, Any]], rows: int) -> None:
    """Reports, each under a key of its own."""
    fleet = Fleet(seed=SEED, count=AIRCRAFT)
    collection = client[ROWS_DATABASE][COLLECTION]
    for begin in range(0, rows, WRITES):
        numbers = range(begin, min(begin + WRITES, rows))
        await collection.insert_many(
            [
                {"_id": number, **msgspec.structs.asdict(fleet.report(number, number / 10))}
                for number in numbers
            ]
        )
