"""What changes of a real MongoDB become, and where a stream begins and goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from bson import Int64, ObjectId

from headgate.errors import OriginRefused
from headgate.model.connector import BEGIN_NOW
from tests.adapters.mongo.conftest import Database
from tests.adapters.mongo.reading import a_stream, an_origin, documents, events
from tests.servers.mongodb import MongoReplicaSet

IMAGES = {"enabled": True}


async def test_changes_become_events_with_key_and_states(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    flights = await database.create_collection("flights", changeStreamPreAndPostImages=IMAGES)
    made = ObjectId()
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await flights.insert_one({"_id": made, "altitude": 1})
        await flights.update_one({"_id": made}, {"$set": {"altitude": 2}})
        await flights.replace_one({"_id": made}, {"altitude": Int64(3)})
        await flights.delete_one({"_id": made})
        found = await events(stream, 4)
    oid = {"$oid": str(made)}
    assert [event.op for event in found] == ["insert", "update", "update", "delete"]
    assert {(event.key, event.collection) for event in found} == {(str(made), "flights")}
    states = [{"_id": oid, "altitude": altitude} for altitude in (1, 2, 3)]
    assert documents(found) == [*states, states[2]]
    assert found[0].earlier is None
    assert [json.loads(event.earlier or b"") for event in found[1:]] == states
    assert len({event.event_id for event in found}) == 4


async def test_an_update_has_the_state_as_of_the_change_where_the_collection_keeps_it(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    await database.create_collection("kept", changeStreamPreAndPostImages=IMAGES)
    await database.create_collection("plain")
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        for name in ("kept", "plain"):
            await database[name].insert_one({"_id": 1, "n": 0})
            for n in (1, 2):
                await database[name].update_one({"_id": 1}, {"$set": {"n": n}})
            await database[name].insert_one({"_id": 2})
            await database[name].update_one({"_id": 2}, {"$set": {"n": 1}})
            await database[name].delete_one({"_id": 2})
        found = await events(stream, 12)
    kept = [event for event in found if event.collection == "kept"]
    plain = [event for event in found if event.collection == "plain"]
    first, second = {"_id": 1, "n": 1}, {"_id": 1, "n": 2}
    assert documents(kept[1:3]) == [first, second]
    # Looked up when the change is read: the later state, and the key alone of what is gone.
    assert documents(plain[1:3]) == [second, second]
    assert documents(plain[4:]) == [{"_id": 2}, {"_id": 2}]
    assert [event.earlier for event in plain] == [None] * 6


async def test_more_than_one_message_holds_is_looked_up_in_portions(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    large = "x" * 5_000_000
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            start = stream.position
            for n in range(5):
                await database.c.insert_one({"_id": n})
                await database.c.update_one({"_id": n}, {"$set": {"large": large}})
                await database.c.update_one({"_id": n}, {"$unset": {"gone": ""}, "$inc": {"n": 1}})
            found = await events(stream, 15)
        async with origin.open(start, begin_at=BEGIN_NOW) as stream:
            again = await events(stream, 15)
    assert [len(event.document) > 5_000_000 for event in found] == [False, True, True] * 5
    assert again == found


async def test_a_transaction_keeps_its_order_and_every_change_its_own_id(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    await database.create_collection("a")
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            start = stream.position
            async with (
                database.client.start_session() as session,
                await session.start_transaction(),
            ):
                for n in range(100):
                    await database.a.insert_one({"_id": n % 50, "n": n}, session=session)
                    await database.a.delete_one({"_id": n % 50}, session=session)
            found = await events(stream, 200)
        middle = str(found[120].source)
        async with origin.open(middle, begin_at=BEGIN_NOW) as stream:
            rest = await events(stream, 79)
        async with origin.open(start, begin_at=BEGIN_NOW) as stream:
            again = await events(stream, 200)
    inserted = [json.loads(event.document)["n"] for event in found[::2]]
    assert inserted == list(range(100))
    assert len({event.event_id for event in found}) == 200
    assert rest == found[121:]
    assert again == found


async def test_drop_and_rename_are_told_and_the_stream_goes_on(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await database.a.insert_one({"_id": "x"})
        await database.a.rename("b")
        await database.b.drop()
        await database.a.insert_one({"_id": "y"})
        await database.client.drop_database(database.name)
        await database.a.insert_one({"_id": "z"})
        found = await events(stream, 6)
    told = [(event.op, event.collection, event.key) for event in found]
    assert told == [
        ("insert", "a", "x"),
        ("rename", "a", None),
        ("drop", "b", None),
        ("insert", "a", "y"),
        ("drop", "a", None),
        ("insert", "a", "z"),
    ]
    assert [found[1].document, found[2].document] == [b'{"to":"b"}', b"null"]


async def test_what_takes_the_place_of_a_collection_is_told_as_its_rename(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """MongoDB tells no drop of the collection that was there: that is what the new name says."""
    await database.a.insert_one({"_id": "x"})
    await database.b.insert_one({"_id": "y"})
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await (await database.a.aggregate([{"$out": "b"}])).to_list()
        await database.a.rename("b", dropTarget=True)
        found = await events(stream, 3)
    told = [(event.op, event.document) for event in found if event.op != "insert"]
    assert told == [("rename", b'{"to":"b"}')] * 2
    assert [event.collection for event in found][-1] == "a"


async def test_one_collection_goes_on_behind_what_ends_its_stream(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """A drop invalidates the stream of a collection; positions behind it are good, too."""
    settings = {"database": database.name, "collection": "a"}
    async with an_origin(lone_mongodb.url, **settings) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.a.insert_one({"_id": 1})
            await database.other.insert_one({"_id": 1})
            await database.a.drop()
            first = await events(stream, 2)
            behind = stream.position
        await database.a.insert_one({"_id": 2})
        await database.a.rename("b")
        async with origin.open(behind, begin_at=BEGIN_NOW) as stream:
            second = await events(stream, 2)
            await database.a.insert_one({"_id": 3})
            third = await events(stream, 1)
    told = [(event.op, json.loads(event.document)) for event in (*first, *second, *third)]
    assert told == [
        ("insert", {"_id": 1}),
        ("drop", None),
        ("insert", {"_id": 2}),
        ("rename", {"to": "b"}),
        ("insert", {"_id": 3}),
    ]
    assert behind > str(first[-1].source)


async def test_a_deployment_names_databases(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    async with a_stream(lone_mongodb.url) as stream:
        await database.a.insert_one({"_id": 1})
        await database.a.rename("b")
        found = await events(stream, 2)
    assert [event.collection for event in found] == [f"{database.name}.a"] * 2
    assert json.loads(found[1].document) == {"to": f"{database.name}.b"}


async def test_the_same_changes_have_the_same_ids_at_every_level(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """A position is good at any of them, and so is the id: an operator may narrow a connector."""
    wider = {"database": database.name}
    async with a_stream(lone_mongodb.url, **wider) as stream:
        start = stream.position
        await database.a.insert_many([{"_id": n} for n in range(3)])
        whole = await events(stream, 3)
    async with a_stream(lone_mongodb.url, **wider, collection="a", after=start) as stream:
        narrow = await events(stream, 3)
    assert whole == narrow


async def test_an_idle_stream_moves_on_with_what_others_write(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    settings = {"database": database.name, "collection": "quiet"}
    async with an_origin(lone_mongodb.url, **settings) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            before = stream.position
            await database.busy.insert_one({})
            changes = await stream.next()
            assert (changes.events, changes.time_ms) == ([], 0)
            assert changes.position == stream.position > before
            idle = stream.position
        await database.quiet.insert_one({"_id": 1})
        async with origin.open(idle, begin_at=BEGIN_NOW) as stream:
            assert documents(await events(stream, 1)) == [{"_id": 1}]


async def test_now_is_when_the_stream_is_opened(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """Not when it is first read: its position says so, whoever goes on from there."""
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        await database.a.insert_one({"_id": 0})
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            position = stream.position
        await database.a.insert_one({"_id": 1})
        async with origin.open(position, begin_at=BEGIN_NOW) as stream:
            found = await events(stream, 1)
        assert documents(found) == [{"_id": 1}]
        at = f"position:{found[0].source}"
        await database.a.insert_one({"_id": 2})
        async with origin.open("", begin_at=at) as stream:
            assert documents(await events(stream, 1)) == [{"_id": 2}]


async def test_a_time_is_where_to_begin(lone_mongodb: MongoReplicaSet, database: Database) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    await database.a.insert_many([{"_id": 0}, {"_id": 1}])
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=f"time:{at}") as stream:
            before = stream.position
            found = await events(stream, 2)
            assert abs((await stream.next()).time_ms) == 0
        assert documents(found) == [{"_id": 0}, {"_id": 1}]
        assert before < str(found[0].source)


@pytest.mark.parametrize(
    "begin_at", ["yesterday", "time:2026-01-01T00:00:00", "time:never", "position:8f", "position:"]
)
async def test_what_says_nothing_of_where_to_begin_is_refused(
    lone_mongodb: MongoReplicaSet, begin_at: str
) -> None:
    async with an_origin(lone_mongodb.url) as origin:
        with pytest.raises(OriginRefused):
            async with origin.open("", begin_at=begin_at):
                pass


async def test_required_states_that_are_missing_are_said_so(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    await database.create_collection("a")
    for setting in ({"earlier": "required"}, {"document": "required"}):
        async with a_stream(lone_mongodb.url, database=database.name, **setting) as stream:
            await database.a.insert_one({"_id": str(setting)})
            await database.a.update_one({"_id": str(setting)}, {"$set": {"n": 1}})
            with pytest.raises(OriginRefused, match="when_available"):
                await events(stream, 2)


async def test_a_looked_up_state_is_what_is_stored_now(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    settings = {"database": database.name, "earlier": "off", "document": "lookup"}
    await database.create_collection("a", changeStreamPreAndPostImages=IMAGES)
    async with a_stream(lone_mongodb.url, **settings) as stream:
        await database.a.insert_one({"_id": 1})
        for n in (1, 2):
            await database.a.update_one({"_id": 1}, {"$set": {"n": n}})
        await database.a.delete_one({"_id": 1})
        await database.a.insert_one({"_id": 1, "n": 3})
        found = await events(stream, 5)
    assert documents(found)[1:4] == [{"_id": 1, "n": 3}] * 2 + [{"_id": 1}]
    assert {event.earlier for event in found} == {None}
