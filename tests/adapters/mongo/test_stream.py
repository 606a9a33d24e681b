"""Positions of a stream whose server splits large changes, from answers made by hand: the server at
hand is too old for it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from bson import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import AutoReconnect

from headgate.adapters.mongo.changes import Naming
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.stream import MongoChangeStream
from headgate.decide.connectors.mongo_settings import MongoSettings
from headgate.errors import OriginUnavailable
from headgate.tasks import Helpers
from tests.adapters.mongo.reading import no_secrets

Change = dict[str, Any]

START = "826AFDA6C3000000122B0229296E04"


def at(number: int) -> dict[str, str]:
    return {"_data": f"826AFDA6C3000000{number:02X}2B042C0100296E5A1004C92308D6{number:02X}04"}


def insert(number: int) -> Change:
    return {
        "_id": at(number),
        "operationType": "insert",
        "clusterTime": Timestamp(0x6AFDA6C3, number),
        "ns": {"db": "shop", "coll": "items"},
        "documentKey": {"_id": number},
        "fullDocument": {"_id": number},
    }


def fragment(number: int, part: int, of: int, fields: Change) -> Change:
    return {"_id": at(number + part), "splitEvent": {"fragment": part, "of": of}, **fields}


class Recorded(Deployment):
    """Answers with batches that were made by hand, and notes what it was asked for."""

    def __init__(self, *batches: list[Change]) -> None:
        super().__init__(MongoSettings(uri="mongodb://recorded", database="shop"), no_secrets)
        self._batches = list(batches)
        self.opened: list[list[Change]] = []

    async def version(self) -> tuple[int, ...]:
        return (7, 0, 0)

    async def command(
        self, database: str, command: Change, session: AsyncClientSession | None = None
    ) -> Change:
        token: Change = {"_data": START}
        changes: list[Change] = []
        if "aggregate" in command:
            self.opened.append(command["pipeline"])
        elif "getMore" in command:
            changes = self._batches.pop(0) if self._batches else []
            token = changes[-1]["_id"] if changes else token
        cursor = {"id": 1, "ns": "shop.$cmd.aggregate", "postBatchResumeToken": token}
        return {"cursor": {**cursor, "nextBatch": changes}}


async def test_no_position_is_between_the_fragments_of_a_change() -> None:
    whole = insert(0x20)
    del whole["_id"]
    document = whole.pop("fullDocument")
    server = Recorded(
        [insert(0x13), fragment(0x20, 1, 3, whole)],
        [fragment(0x20, 2, 3, {"updateDescription": {}})],
        [fragment(0x20, 3, 3, {"fullDocument": document}), insert(0x30)],
    )
    naming = Naming("orders", "shop")
    async with Helpers() as helpers:
        stream = MongoChangeStream(server, naming, cast("AsyncClientSession", None), helpers)
        await stream.begin({})
        assert server.opened[0][-1] == {"$changeStreamSplitLargeEvent": {}}
        assert stream.position == START
        told = []
        for _ in range(3):
            changes = await stream.next()
            assert changes.position == stream.position
            told.append(([event.source for event in changes.events], changes.position))
    first, large, last = (at(number)["_data"] for number in (0x13, 0x23, 0x30))
    assert told == [([first], first), ([], first), ([large, last], last)]


class Unsteady(Recorded):
    """Has a history, from which every cursor reads a change at a time, and is away for the first
    lookup."""

    def __init__(self, *history: Change) -> None:
        super().__init__()
        self._history = list(history)
        self._read = 0
        self._away = True
        self.asked = 0

    async def command(
        self, database: str, command: Change, session: AsyncClientSession | None = None
    ) -> Change:
        if "find" in command:
            if self._away:
                self._away = False
                raise AutoReconnect("away")
            return {"cursor": {"id": 0, "firstBatch": []}}
        if "aggregate" in command:
            after = command["pipeline"][0]["$changeStream"].get("startAfter", {"_data": ""})
            self._read = sum(one["_id"]["_data"] <= after["_data"] for one in self._history)
        if "getMore" in command:
            self.asked += 1
            self._batches = [self._history[self._read : self._read + 1]]
            self._read += 1
        return await super().command(database, command, session)


def update(number: int) -> Change:
    return {**insert(number), "operationType": "update", "fullDocument": None}


async def test_the_next_changes_are_asked_for_before_these_are_worked_on() -> None:
    server = Unsteady(insert(0x13), insert(0x14))
    async with Helpers() as helpers:
        stream = MongoChangeStream(
            server, Naming("orders", "shop"), cast("AsyncClientSession", None), helpers
        )
        await stream.begin({})
        changes = await stream.next()
        assert server.asked == 2
        assert changes.position == stream.position == at(0x13)["_data"]


async def test_what_was_asked_for_ahead_comes_once_where_another_cursor_begins() -> None:
    server = Unsteady(update(0x13), insert(0x14), insert(0x15))
    async with Helpers() as helpers:
        stream = MongoChangeStream(
            server, Naming("orders", "shop"), cast("AsyncClientSession", None), helpers
        )
        await stream.begin({})
        with pytest.raises(OriginUnavailable):
            await stream.next()
        told = [event.source for _ in range(4) for event in (await stream.next()).events]
    assert told == [at(number)["_data"] for number in (0x13, 0x14, 0x15)]
