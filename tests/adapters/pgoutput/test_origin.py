"""What changes of a real PostgreSQL become, and where a stream begins and goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from headgate.adapters.pgoutput import database as adapter
from headgate.adapters.pgoutput import slot, tables
from headgate.adapters.pgoutput.database import Row
from headgate.adapters.pgoutput.stream import BATCH
from headgate.errors import ChangeTooLarge, OriginHistoryLost, OriginRefused, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from headgate.model.event import UNKNOWN_HEADER
from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.reading import NAME, a_stream, an_origin, documents, events

LARGE = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i"


async def test_changes_become_events_with_key_and_states(database: Database) -> None:
    await database.run("CREATE TABLE flights (id int PRIMARY KEY, altitude int)")
    await database.run("ALTER TABLE flights REPLICA IDENTITY FULL")
    async with a_stream(database.dsn, tables="public.flights") as stream:
        await database.run("INSERT INTO flights VALUES (7, 1)")
        await database.run("UPDATE flights SET altitude = 2")
        await database.run("DELETE FROM flights")
        await database.run("TRUNCATE flights")
        found = await events(stream, 4)
    assert [event.op for event in found] == ["insert", "update", "delete", "truncate"]
    assert [event.key for event in found] == ["7", "7", "7", None]
    assert {event.collection for event in found} == {"public.flights"}
    states = [{"id": 7, "altitude": altitude} for altitude in (1, 2)]
    assert documents(found) == [*states, states[1], None]
    earlier = [None if e.earlier is None else json.loads(e.earlier) for e in found]
    assert earlier == [None, *states, None]
    assert len({event.event_id for event in found}) == 4


async def test_every_type_of_the_server_is_written_as_documented(database: Database) -> None:
    await database.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    await database.run("CREATE DOMAIN price AS numeric(12, 2)")
    await database.run("CREATE TYPE spans AS RANGE (subtype = price)")
    # Whatever the database's own settings are.
    await database.run("ALTER DATABASE " + database.name + " SET datestyle = 'German'")
    await database.run("ALTER DATABASE " + database.name + " SET timezone = 'Asia/Tokyo'")
    await database.run("ALTER DATABASE " + database.name + " SET bytea_output = 'escape'")
    await database.run(
        "CREATE TABLE t (id uuid PRIMARY KEY, n numeric, f float8, b bytea, at timestamptz, "
        "day date, pause interval, tags text[], grid int[][], doc jsonb, raw json, moods mood[], "
        "cost price, span spans, days daterange, many int4multirange, yes boolean, ip inet, "
        "twice int GENERATED ALWAYS AS (21 * 2) STORED, nothing text)"
    )
    async with a_stream(database.dsn) as stream:
        await database.run(
            "INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000001', "
            "12345678901234567890.10, 0.1, '\\x00ff', '2026-01-02 03:04:05.678+00', '2026-01-02', "
            "'1 year 2 days 3:04', '{a,NULL,\"b,c\"}', '{{1,2},{3,4}}', "
            """'{"a": 1.50}', '{ "a" : 1 }', '{sad,ok}', 1.50, '[1,2)', """
            "'[2026-01-01,2026-01-03)', "
            "'{[1,3),[5,7)}', true, '10.0.0.1/8')"
        )
        [found] = await events(stream, 1)
    assert found.key == "00000000-0000-0000-0000-000000000001"
    assert b'"n":12345678901234567890.10' in found.document
    assert b'"cost":1.50' in found.document
    assert documents([found])[0] == {
        "id": "00000000-0000-0000-0000-000000000001",
        "n": 12345678901234567890.10,
        "f": 0.1,
        "b": "AP8=",
        "at": "2026-01-02T03:04:05.678Z",
        "day": "2026-01-02",
        "pause": "P1Y2DT3H4M",
        "tags": ["a", None, "b,c"],
        "grid": [[1, 2], [3, 4]],
        "doc": {"a": 1.5},
        "raw": {"a": 1},
        "moods": ["sad", "ok"],
        "cost": 1.5,
        "span": {"lower": 1.0, "upper": 2.0, "bounds": "[)"},
        "days": {"lower": "2026-01-01", "upper": "2026-01-03", "bounds": "[)"},
        "many": [
            {"lower": 1, "upper": 3, "bounds": "[)"},
            {"lower": 5, "upper": 7, "bounds": "[)"},
        ],
        "yes": True,
        "ip": "10.0.0.1/8",
        "twice": 42,
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("identity", "is_known"),
    [("DEFAULT", False), ("USING INDEX other_index", False), ("FULL", True)],
)
async def test_an_unchanged_large_value_under_each_identity(
    database: Database, identity: str, is_known: bool
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL, body text)")
    await database.run("CREATE UNIQUE INDEX other_index ON t (other)")
    await database.run("ALTER TABLE t REPLICA IDENTITY " + identity)
    await database.run("INSERT INTO t VALUES (1, 10, (" + LARGE + "))")
    [(body,)] = await database.run("SELECT body FROM t")
    async with a_stream(database.dsn) as stream:
        await database.run("UPDATE t SET id = 2")
        await database.run("UPDATE t SET body = 'small'")
        found = await events(stream, 3 if identity != "USING INDEX other_index" else 2)
    changed, last = found[-2], found[-1]
    marked = None if is_known else json.dumps(["body"])
    headers = {} if changed.headers is None else json.loads(changed.headers)
    assert headers.get(UNKNOWN_HEADER) == marked
    assert documents([changed])[0] == {"id": 2, "other": 10} | ({"body": body} if is_known else {})
    assert last.headers is None
    assert documents([last])[0]["body"] == "small"
    assert (last.earlier is not None) == is_known
    assert changed.key == ("10" if identity.startswith("USING") else "2")


async def test_a_transaction_keeps_its_order_and_a_reader_goes_on_within_it(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY, n int)")
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            start = stream.position
            async with database.connection.transaction():
                for n in range(100):
                    await database.run("INSERT INTO t VALUES (%s, %s)", (n % 50, n))
                    await database.run("DELETE FROM t WHERE id = %s", (n % 50,))
            found = await events(stream, 200)
        middle = str(found[120].source)
        async with origin.open(middle, begin_at=BEGIN_NOW) as stream:
            rest = await events(stream, 79)
        async with origin.open(start, begin_at=BEGIN_NOW) as stream:
            whole = await events(stream, 200)
            stream.stored(middle)
        async with origin.open(middle, begin_at=BEGIN_NOW) as stream:
            again = await events(stream, 79)
    assert [json.loads(event.document)["n"] for event in found[::2]] == list(range(100))
    assert len({event.event_id for event in found}) == 200
    assert rest == again == found[121:]
    assert whole == found


async def test_more_than_a_batch_is_told_in_several(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with a_stream(database.dsn) as stream:
        await database.run("INSERT INTO t SELECT generate_series(1, 2500)")
        sizes: list[int] = []
        while sum(sizes) < 2_500:
            sizes.append(len((await stream.next()).events))
            assert max(sizes) <= BATCH
    assert len(sizes) > 2


async def test_schema_changes_go_on_without_a_restart(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    await database.run("ALTER TABLE t REPLICA IDENTITY FULL")
    async with a_stream(database.dsn) as stream:
        await database.run("INSERT INTO t VALUES (1, 1, 'x')")
        await database.run("ALTER TABLE t ADD COLUMN c int DEFAULT 5")
        await database.run("UPDATE t SET a = 2")
        await database.run("ALTER TABLE t RENAME COLUMN id TO number")
        await database.run("UPDATE t SET a = 3")
        await database.run("ALTER TABLE t DROP COLUMN b")
        await database.run("ALTER TABLE t ALTER COLUMN a TYPE text")
        await database.run("UPDATE t SET a = 'four'")
        await database.run("ALTER TABLE t RENAME TO u")
        await database.run("UPDATE u SET a = 'five'")
        await database.run("CREATE TABLE later (id int PRIMARY KEY)")
        await database.run("INSERT INTO later VALUES (1)")
        found = await events(stream, 6)
    assert documents(found) == [
        {"id": 1, "a": 1, "b": "x"},
        {"id": 1, "a": 2, "b": "x", "c": 5},
        {"number": 1, "a": 3, "b": "x", "c": 5},
        {"number": 1, "a": "four", "c": 5},
        {"number": 1, "a": "five", "c": 5},
        {"id": 1},
    ]
    assert [event.key for event in found] == ["1"] * 6
    names = [event.collection for event in found]
    assert names == [*["public.t"] * 4, "public.u", "public.later"]


async def test_a_table_added_to_the_settings_publication_is_told_from_then_on(
    database: Database,
) -> None:
    await database.run("CREATE TABLE a (id int PRIMARY KEY)")
    await database.run("CREATE TABLE b (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION given FOR TABLE a")
    async with a_stream(database.dsn, publication="given") as stream:
        await database.run("INSERT INTO b VALUES (1)")
        await database.run("ALTER PUBLICATION given ADD TABLE b")
        await database.run("INSERT INTO b VALUES (2)")
        await database.run("INSERT INTO a VALUES (3)")
        found = await events(stream, 2)
    assert [(event.collection, event.key) for event in found] == [
        ("public.b", "2"),
        ("public.a", "3"),
    ]


async def test_partitions_are_told_as_their_table(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    await database.run("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    async with a_stream(database.dsn, tables="public.t") as stream:
        await database.run("INSERT INTO t VALUES (1)")
        [found] = await events(stream, 1)
    assert found.collection == "public.t"


async def test_it_begins_at_an_lsn_and_behind_a_records_source(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO t VALUES (1)")
            [(lsn,)] = await database.run("SELECT pg_current_wal_lsn()::text")
            await database.run("INSERT INTO t VALUES (2)")
            first, second = await events(stream, 2)
        for begin_at in (f"position:{lsn}", f"position:{first.source}"):
            async with origin.open("", begin_at=begin_at) as stream:
                assert await events(stream, 1) == [second]
        for wrong in ("time:2026-11-18T12:00:00Z", "position:nonsense"):
            with pytest.raises(OriginRefused):
                async with origin.open("", begin_at=wrong):
                    pass
        with pytest.raises(OriginHistoryLost):
            async with origin.open("", begin_at="position:0/1000"):
                pass


async def test_a_change_that_cannot_be_a_record_stops_at_its_place_and_may_be_left_out(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("CREATE TABLE keyless (n int)")
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            async with database.connection.transaction():
                await database.run("INSERT INTO t VALUES (1)")
                await database.run("INSERT INTO keyless VALUES (1)")
                await database.run("INSERT INTO t VALUES (2)")
            [first] = await events(stream, 1)
            with pytest.raises(ChangeTooLarge) as stopped:
                await stream.next()
        assert stopped.value.what == "insert of public.keyless"
        async with origin.open(stopped.value.position, begin_at=BEGIN_NOW) as stream:
            [second] = await events(stream, 1)
    assert (first.key, second.key) == ("1", "2")


async def test_what_a_connector_has_made_goes_with_it_and_nothing_else(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION given FOR TABLE t")
    await database.run("SELECT pg_create_logical_replication_slot('given', 'pgoutput')")
    async with a_stream(database.dsn, publication="given", slot="given") as stream:
        await database.run("INSERT INTO t VALUES (1)")
        assert len(await events(stream, 1)) == 1
    async with an_origin(database.dsn, publication="given", slot="given") as origin:
        await origin.release()
    assert await made(database) == ({"given"}, {"given"})
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW):
            assert await made(database) == (
                {"given", f"headgate_{NAME}"},
                {"given", f"headgate_{NAME}"},
            )
        await origin.release()
        await origin.release()
    assert await made(database) == ({"given"}, {"given"})


async def test_a_reader_that_leaves_a_moment_later_doesnt_keep_a_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server notices only a while after a connection is closed that its reader is gone."""
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    refused = asyncio.Event()
    ask = adapter.Database.rows

    async def told(asked: adapter.Database, query: Any, *more: Any, **named: Any) -> list[Row]:
        try:
            return await ask(asked, query, *more, **named)
        except psycopg.errors.ObjectInUse:
            refused.set()
            raise

    monkeypatch.setattr(adapter.Database, "rows", told)
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW):
            releasing = asyncio.create_task(origin.release())
            await refused.wait()
        await releasing
    assert await made(database) == (set(), set())


async def made(database: Database) -> tuple[set[str], set[str]]:
    publications = await database.run("SELECT pubname FROM pg_publication")
    slots = await database.run(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    return {name for (name,) in publications}, {name for (name,) in slots}


async def test_a_table_that_is_gone_stops_no_other_and_one_made_anew_is_told_with_its_rows(
    database: Database,
) -> None:
    """To tell it before anybody reads its rows would pass over what was written until then."""
    await database.run("CREATE TABLE a (id int PRIMARY KEY)")
    await database.run("CREATE TABLE b (id int PRIMARY KEY)")
    await database.run("CREATE TABLE c (id int PRIMARY KEY)")
    async with an_origin(database.dsn, tables="public.a,public.b,public.c") as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("DROP TABLE a, b")
            await database.run("CREATE TABLE a (id int PRIMARY KEY)")
            await database.run("INSERT INTO a VALUES (1)")
            await database.run("ALTER TABLE c RENAME TO d")
            await database.run("INSERT INTO d VALUES (1)")
            [told] = await events(stream, 1)
            warning = (await origin.standing(stream.position)).warning
        assert "no table public.a, public.b, public.c" in warning
        assert "snapshot shop --table public.a --table public.b" in warning
        async with origin.open(str(told.source), begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO a VALUES (2)")
            await database.run("INSERT INTO d VALUES (3)")
            [second] = await events(stream, 1)
            assert (await origin.standing(stream.position)).warning == warning
            assert "public.a" in (await stream.listing()).collections
            chunk = await stream.chunk("public.a", "")
            await database.run("INSERT INTO a VALUES (4)")
            [third] = await events(stream, 1)
            warning = (await origin.standing(stream.position)).warning
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO d VALUES (5)")
            await database.run("INSERT INTO a VALUES (6)")
            assert [one.key for one in await events(stream, 1)] == ["6"]
    assert [one.key for one in chunk.rows] == ["1", "2"]
    assert (told.collection, told.key) == ("public.d", "1")
    assert (second.collection, second.key) == ("public.d", "3")
    assert (third.collection, third.key) == ("public.a", "4")
    assert "no table public.b, public.c" in warning


async def test_who_wrote_before_a_table_was_published_again_is_waited_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WAIT_S", 0.2)
    await database.run("CREATE TABLE a (id int PRIMARY KEY)")
    await database.run("CREATE TABLE b (id int PRIMARY KEY)")
    async with (
        a_stream(database.dsn, tables="public.a,public.b") as stream,
        await psycopg.AsyncConnection.connect(database.dsn) as other,
    ):
        assert (await stream.chunk("public.b", "")).rows == []
        await database.run("DROP TABLE a")
        await database.run("CREATE TABLE a (id int PRIMARY KEY)")
        await other.execute("INSERT INTO a VALUES (1)")
        with pytest.raises(OriginUnavailable, match="before the transaction"):
            await stream.chunk("public.a", "")
        await other.commit()
        assert [one.key for one in (await stream.chunk("public.a", "")).rows] == ["1"]


async def test_a_transaction_that_a_new_slot_waits_for_is_named_and_nothing_is_left_waiting(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "CREATE_WAIT_S", 0.3)
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with (
        an_origin(database.dsn) as origin,
        await psycopg.AsyncConnection.connect(database.dsn) as other,
    ):
        await other.execute("INSERT INTO t VALUES (1)")
        for _ in range(2):
            with pytest.raises(OriginUnavailable, match=f"process {other.info.backend_pid}, open"):
                async with origin.open("", begin_at=BEGIN_NOW):
                    pass
        assert await made(database) == ({f"headgate_{NAME}"}, set())
        assert (await origin.standing("")).warning == ""
        await other.commit()
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO t VALUES (2)")
            assert [one.key for one in await events(stream, 1)] == ["2"]


async def test_a_prepared_transaction_that_a_new_slot_waits_for_is_named(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process has it, and nobody would find it by another one's."""
    monkeypatch.setattr(slot, "CREATE_WAIT_S", 0.3)
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'forgotten'")
    async with an_origin(database.dsn) as origin:
        try:
            with pytest.raises(OriginUnavailable, match="prepared as 'forgotten' in the database"):
                async with origin.open("", begin_at=BEGIN_NOW):
                    pass
        finally:
            await database.run("ROLLBACK PREPARED 'forgotten'")
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO t VALUES (2)")
            assert [one.key for one in await events(stream, 1)] == ["2"]


async def test_tables_that_inherit_are_their_own_and_nothing_of_the_connectors(
    database: Database,
) -> None:
    """To publish one that has no key would let the server refuse every delete from its parent."""
    await database.run("CREATE TABLE parent (id int PRIMARY KEY)")
    await database.run("CREATE TABLE keyless () INHERITS (parent)")
    async with an_origin(database.dsn, tables="public.parent") as origin:
        for _ in range(2):  # the second begins anew with what the first has made
            async with origin.open("", begin_at=BEGIN_NOW) as stream:
                await database.run("INSERT INTO keyless VALUES (1)")
                await database.run("INSERT INTO parent VALUES (2)")
                await database.run("DELETE FROM parent")
                found = await events(stream, 2)
            assert [(one.op, one.key) for one in found] == [("insert", "2"), ("delete", "2")]


async def test_who_begins_anew_is_told_what_the_settings_name_and_nothing_else(
    database: Database,
) -> None:
    """Of a publication that was left behind."""
    await database.run("CREATE TABLE a (id int PRIMARY KEY)")
    await database.run("CREATE TABLE b (id int PRIMARY KEY)")
    async with a_stream(database.dsn, tables="public.a"):
        pass
    async with a_stream(database.dsn, tables="public.b") as stream:
        await database.run("INSERT INTO a VALUES (1)")
        await database.run("INSERT INTO b VALUES (2)")
        [found] = await events(stream, 1)
    assert found.collection == "public.b"
