"""What a check finds, with real users and rights; and that no secret is ever shown."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from headgate.adapters.mongo import deployment
from headgate.adapters.mongo.origin import MongoOrigin
from headgate.errors import InvalidConfig, OriginRefused, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from headgate.ports.origin import Finding, Standing
from tests.adapters.mongo.conftest import Database
from tests.adapters.mongo.reading import NAME, an_origin
from tests.servers.mongodb import MongoNode, MongoReplicaSet, collect_sockets
from tests.servers.process import free_port

PASSWORD = "p@ss/w:rd%?"
"""What an address can't hold as it is."""
USERS: dict[str, list[dict[str, str]]] = {
    "nobody": [],
    "reader": [{"role": "read", "db": "shop"}],
    "watcher": [{"role": "read", "db": "shop"}, {"role": "read", "db": "local"}],
    "everywhere": [{"role": "readAnyDatabase", "db": "admin"}],
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoReplicaSet]:
    with MongoReplicaSet(1, key="a key that members share") as server:
        yield server


@pytest.fixture
async def users(guarded: MongoReplicaSet) -> AsyncIterator[MongoReplicaSet]:
    """Each makes its own when it is the first: the machine itself may make one."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(guarded.url)
    if not getattr(guarded, "has_users", False):
        root: list[Any] = ["root"]
        await client.admin.command("createUser", "root", pwd=PASSWORD, roles=root)
        await client.close()
        client = AsyncMongoClient(guarded.url, username="root", password=PASSWORD)
        for name, roles in USERS.items():
            await client.admin.command("createUser", name, pwd=PASSWORD, roles=roles)
        await client.shop.create_collection("kept", changeStreamPreAndPostImages={"enabled": True})
        guarded.has_users = True  # type: ignore[attr-defined]
    await client.close()
    yield guarded
    collect_sockets()


def as_user(server: MongoReplicaSet, name: str, password: str = PASSWORD, **settings: str) -> Any:
    uri = server.url.replace("mongodb://", f"mongodb://{name}:${{SECRET}}@")
    return MongoOrigin(
        {"uri": uri, **settings}, name=NAME, resolve={"SECRET": password}.__getitem__
    )


async def verdicts(origin: MongoOrigin) -> dict[str, Finding]:
    try:
        return {one.what: one for one in await origin.check()}
    finally:
        await origin.close()


async def test_all_is_well_for_who_may_read_and_look(users: MongoReplicaSet) -> None:
    found = await verdicts(as_user(users, "watcher", database="shop"))
    assert {one.verdict for one in found.values()} == {"ok"}
    assert list(found) == [
        *("connection", "replica set", "version", "rights", "pre-images", "history"),
    ]
    # A server that was set up a moment ago doesn't hold "0.0 hours".
    assert re.fullmatch(r"the oplog holds [\d.]+ (ms|s|min)", found["history"].sentence)


async def test_rights_that_lack_are_named(users: MongoReplicaSet) -> None:
    found = await verdicts(as_user(users, "nobody", database="shop", collection="kept"))
    assert found["rights"].verdict == "failed"
    assert '{role: "read", db: "shop"}' in found["rights"].sentence
    assert '"changeStream" on {db: "shop", collection: "kept"}' in found["rights"].sentence
    found = await verdicts(as_user(users, "reader"))
    assert "readAnyDatabase" in found["rights"].sentence


async def test_the_oplog_may_be_out_of_sight(users: MongoReplicaSet) -> None:
    origin = as_user(users, "reader", database="shop")
    async with origin.open("", begin_at=BEGIN_NOW) as stream:
        standing = await origin.standing(stream.position)
    assert (standing.behind, standing.history_ms) == (None, None)
    found = await verdicts(origin)
    assert (found["rights"].verdict, found["history"].verdict) == ("ok", "warning")
    assert 'db: "local"' in found["history"].sentence
    assert (await verdicts(as_user(users, "everywhere")))["rights"].verdict == "ok"


async def test_who_may_not_is_refused_without_the_secret(users: MongoReplicaSet) -> None:
    for name, password, told in (
        ("nobody", PASSWORD, "grant"),
        ("reader", "wrong-one", "password"),
    ):
        origin = as_user(users, name, password, database="shop")
        with pytest.raises(OriginRefused, match=told) as refused:
            async with origin.open("", begin_at=BEGIN_NOW):
                pass
        shown = f"{refused.value} {refused.value.details} {origin!r} {vars(origin)}"
        assert password not in shown
        assert "%40" not in shown
        found = await verdicts(origin)
        assert [one.verdict for one in found.values()][-1] == "failed"
        assert password not in repr(found)


async def test_a_secret_that_was_refused_is_looked_up_anew(users: MongoReplicaSet) -> None:
    found = iter(["wrong-one", PASSWORD])
    uri = users.url.replace("mongodb://", "mongodb://reader:${SECRET}@")
    origin = MongoOrigin({"uri": uri, "database": "shop"}, name=NAME, resolve=lambda _: next(found))
    with pytest.raises(OriginRefused):
        async with origin.open("", begin_at=BEGIN_NOW):
            pass
    async with origin.open("", begin_at=BEGIN_NOW) as stream:
        assert stream.position
    await origin.close()


async def test_a_secret_that_isnt_there_is_named() -> None:
    def resolve(reference: str) -> str:
        raise InvalidConfig(f"the environment of this process has no {reference}")

    origin = MongoOrigin({"uri": "${MONGO_URI}"}, name=NAME, resolve=resolve)
    with pytest.raises(OriginRefused, match="MONGO_URI"):
        async with origin.open("", begin_at=BEGIN_NOW):
            pass
    (finding,) = await origin.check()
    assert (finding.verdict, "MONGO_URI" in finding.sentence) == ("failed", True)


@pytest.mark.parametrize(
    "uri", ["mongodb://u:s3cret@host:port", "http://u:s3cret@host", "mongodb://u:s3@cret@host/"]
)
async def test_an_address_that_is_none_isnt_shown(uri: str) -> None:
    origin = MongoOrigin({"uri": "${U}"}, name=NAME, resolve=lambda _: uri)
    (finding,) = await origin.check()
    assert finding.verdict == "failed"
    assert "the setting uri" in finding.sentence
    assert "cret" not in repr(finding)
    await origin.close()


async def test_collections_without_images_are_named_with_what_to_set(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    for name in "abcdefg":
        await database.create_collection(name)
    await database.create_collection("kept", changeStreamPreAndPostImages={"enabled": True})
    for settings, verdict in (
        ({}, "warning"),
        ({"earlier": "required"}, "failed"),
        ({"document": "required"}, "failed"),
        ({"earlier": "off"}, "ok"),
        ({"collection": "kept"}, "ok"),
    ):
        async with an_origin(lone_mongodb.url, database=database.name, **settings) as origin:
            found = {one.what: one for one in await origin.check()}
        assert found["pre-images"].verdict == verdict, settings
        assert found["history"].verdict == "ok"
        if verdict != "ok":
            assert "and 2 more" in found["pre-images"].sentence
            assert "collMod" in found["pre-images"].sentence


async def test_a_server_that_runs_alone_is_told_apart() -> None:
    with MongoNode() as alone:
        uri = f"mongodb://{alone.address}/?directConnection=true"
        async with an_origin(uri) as origin:
            *_, last = await origin.check()
        collect_sockets()
    assert (last.what, last.verdict) == ("replica set", "failed")
    assert "rs.initiate()" in last.sentence


async def test_nobody_there_is_an_outage_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "SELECTION_TIMEOUT_MS", 100)
    async with an_origin(f"mongodb://127.0.0.1:{free_port()}/?timeoutMS=1") as origin:
        (finding,) = await origin.check()
        assert (finding.what, finding.verdict) == ("connection", "failed")
        assert "can't be reached" in finding.sentence
        with pytest.raises(OriginUnavailable):
            async with origin.open("", begin_at=BEGIN_NOW):
                pass
        for position in ("82" + "00" * 12, "no position"):
            assert await origin.standing(position) == Standing()
    collect_sockets()


async def test_what_is_behind_is_counted(lone_mongodb: MongoReplicaSet, database: Database) -> None:
    settings = {"database": database.name}
    for level in (settings, {**settings, "collection": "a"}, {}):
        async with an_origin(lone_mongodb.url, **level) as origin:
            async with origin.open("", begin_at=BEGIN_NOW) as stream:
                position = stream.position
            await database.a.insert_many([{} for _ in range(7)])
            standing = await origin.standing(position)
            assert standing.behind == 7, level
            assert standing.history_ms is not None
            assert 0 <= standing.history_ms < 3_600_000
            assert standing.age_ms is not None
            assert standing.age_ms <= standing.history_ms
            newest = standing.age_ms
            early = position[:2] + f"{int(position[2:10], 16) - 100:08X}" + position[10:]
            older = (await origin.standing(early)).age_ms
            assert older is not None
            assert 100_000 <= older <= newest + 110_000
