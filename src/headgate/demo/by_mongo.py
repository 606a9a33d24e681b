"""The demo's reports as documents of MongoDB, one per aircraft, which a connector reads.

A report replaces its aircraft's document; it is acknowledged when a majority of the members has it.
What is sent while a write is under way is written with the next one: each report is a commit of its
own all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
from pymongo import AsyncMongoClient, ReplaceOne
from pymongo.errors import PyMongoError

from headgate import errors
from headgate.adapters.mongo.identity import key_of
from headgate.client.http import HttpClient
from headgate.client.subscriber import Event
from headgate.decide.produce.placement import partition_of
from headgate.demo.mongodb import connected
from headgate.demo.ways_in import Numbered, Outcome
from headgate.model.connectors_api import ConnectorInfo, CreateConnector, RouteInfo

CONNECTOR = "aircraft"
COLLECTION = "flights"
CREATE_TIMEOUT_S = 40.0


class _Named(msgspec.Struct):
    """What of a document says which report it is."""

    icao: str
    number: int


_decode = msgspec.json.Decoder(_Named).decode


@dataclass(slots=True)
class _Write:
    """Reports that are written together."""

    reports: list[Numbered] = field(default_factory=list)
    is_done: bool = False
    failure: errors.HeadgateError | None = None


class ByMongo:
    """Implements ways_in.WayIn."""

    def __init__(self, uri: str, database: str, topic: str, *, partitions: int) -> None:
        self._uri = uri
        self._database = database
        self._topic = topic
        self._partitions = partitions
        self._client: AsyncMongoClient[dict[str, Any]] | None = None
        self._next = _Write()
        self._turn = asyncio.Lock()

    async def prepare(self, http: HttpClient) -> None:
        """Raises NotNow until the connector reads: it begins with what is written from then on."""
        try:
            await http.post(
                "/v1/connectors", self._wanted(), ConnectorInfo, timeout_s=CREATE_TIMEOUT_S
            )
        except errors.ConnectorExists:
            pass  # an earlier try made it
        info = await http.get(f"/v1/connectors/{CONNECTOR}", ConnectorInfo)
        if info.state != "running":
            why = f": {info.reason}" if info.reason else ""
            raise errors.NotNow(f"connector {CONNECTOR} is {info.state}{why}")

    def _wanted(self) -> CreateConnector:
        settings = {"uri": self._uri, "database": self._database, "collection": COLLECTION}
        return CreateConnector(CONNECTOR, "mongodb", settings, [RouteInfo(self._topic)])

    async def __aenter__(self) -> Self:
        self._client = connected(self._uri)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._client is not None
        await self._client.close()

    async def send(self, reports: Sequence[Numbered]) -> list[Outcome]:
        write = self._next
        write.reports += reports
        async with self._turn:
            if not write.is_done:  # the first of the tasks that share it does it for all
                self._next = _Write()
                write.failure = await self._written(write.reports)
                write.is_done = True
        return [write.failure or self._partition_of(one) for one in reports]

    async def _written(self, reports: Sequence[Numbered]) -> errors.HeadgateError | None:
        assert self._client is not None
        replacing = [
            ReplaceOne({"_id": one.report.icao}, _document(one), upsert=True) for one in reports
        ]
        try:
            await self._client[self._database][COLLECTION].bulk_write(replacing)
        except PyMongoError as error:
            return errors.NotNow(f"MongoDB didn't acknowledge {len(reports)} writes: {error}")
        return None

    def _partition_of(self, one: Numbered) -> int:
        key = key_of(one.report.icao)
        return partition_of(key, collection=COLLECTION, count=self._partitions)

    def id_of(self, event: Event) -> str:
        named = _decode(event.raw)
        return f"{named.icao}-{named.number}"


def _document(one: Numbered) -> dict[str, Any]:
    return {"_id": one.report.icao, **msgspec.structs.asdict(one.report), "number": one.number}
