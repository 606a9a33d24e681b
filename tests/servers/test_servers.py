"""Each real server does, through its client, the thing that Headgate needs it for."""

from __future__ import annotations

from typing import Any

import aetcd
import nats as nats_client
import psycopg
import pytest
from pymongo import MongoClient

from tests.servers.etcd import Etcd
from tests.servers.mongodb import MongoReplicaSet
from tests.servers.nats import Nats
from tests.servers.postgres import Postgres
from tests.servers.process import Server


async def test_etcd_compares_and_sets_and_tells_watchers(etcd: Etcd) -> None:
    async with aetcd.Client(host="127.0.0.1", port=etcd.port) as client:
        watch = await client.watch(b"owner")
        await client.put(b"owner", b"one")
        won, _ = await client.transaction(
            compare=[client.transactions.value(b"owner") == b"one"],
            success=[client.transactions.put(b"owner", b"two")],
            failure=[],
        )
        lost, _ = await client.transaction(
            compare=[client.transactions.value(b"owner") == b"one"],
            success=[client.transactions.put(b"owner", b"three")],
            failure=[],
        )
        seen = []
        async for event in watch:
            seen.append(event.kv.value)
            if len(seen) == 2:
                break
        await watch.cancel()
    assert (won, lost) == (True, False)
    assert seen == [b"one", b"two"]


async def test_nats_drops_a_message_with_an_id_it_has_seen(nats: Nats) -> None:
    connection = await nats_client.connect(nats.url)
    try:
        stream = connection.jetstream()
        await stream.add_stream(name="events", subjects=["events.>"])
        first = await stream.publish("events.a", b"1", headers={"Nats-Msg-Id": "same"})
        again = await stream.publish("events.a", b"1", headers={"Nats-Msg-Id": "same"})
        other = await stream.publish("events.a", b"2", headers={"Nats-Msg-Id": "other"})
    finally:
        await connection.close()
    assert (first.seq, again.seq, other.seq) == (1, 1, 2)
    assert again.duplicate


def test_postgres_decodes_what_was_inserted_from_its_log(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE flights (icao text PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION smoke FOR TABLE flights")
        connection.execute("SELECT pg_create_logical_replication_slot('smoke', 'pgoutput')")
        connection.execute("INSERT INTO flights VALUES ('3c6444')")
        changes = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes("
            "'smoke', NULL, NULL, 'proto_version', '1', 'publication_names', 'smoke')"
        ).fetchall()
        connection.execute("SELECT pg_drop_replication_slot('smoke')")
    kinds = [data[:1] for (data,) in changes]
    assert kinds == [b"B", b"R", b"I", b"C"], "begin, relation, insert, commit"
    assert b"3c6444" in changes[2][0]


def test_mongodb_streams_changes_and_resumes_after_one(mongodb: MongoReplicaSet) -> None:
    with MongoClient[dict[str, Any]](mongodb.url, w="majority") as client:
        flights = client.smoke.flights
        with flights.watch() as stream:
            flights.insert_many([{"_id": number} for number in range(3)])
            token = next(stream)["_id"]
        with flights.watch(resume_after=token) as stream:
            resumed = [next(stream)["documentKey"]["_id"] for _ in range(2)]
    assert resumed == [1, 2]


# --- the fixtures' own promises -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Etcd, Nats, Postgres], ids=lambda kind: kind.name)
def test_a_killed_server_restarts_on_its_port(kind: type[Server]) -> None:
    with kind() as server:
        before = server.pid
        server.kill()
        assert not server.answers()
        server.restart()
        assert server.pid != before
        assert server.answers()
        folder = server.folder
    assert not folder.exists()


def test_a_killed_postgres_keeps_what_was_committed() -> None:
    with Postgres() as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        server.kill()
        server.restart()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_mongodb_elects_another_primary_when_one_is_killed(mongodb: MongoReplicaSet) -> None:
    former = mongodb.primary()
    former.kill()
    try:
        assert mongodb.primary() is not former
    finally:
        former.restart()
