"""What a slot no longer has is said at once, and never passed over; what a standby has goes on."""

from __future__ import annotations

import asyncio

import psutil
import psycopg
import pytest

from headgate.adapters.pgoutput import link
from headgate.adapters.pgoutput.identity import position_from
from headgate.errors import OriginHistoryLost, OriginRefused, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.reading import NAME, a_stream, an_origin, documents, events
from tests.servers.postgres import Postgres, Standby
from tests.waiting import until

SLOT = f"headgate_{NAME}"
GROWTH_MOST = 40_000_000
"""A hundred thousand rows held as events would take more than twice that."""


async def read_some(database: Database) -> str:
    """Where a reader stands that has taken one change, and the next one was made behind it."""
    await database.run("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
    async with a_stream(database.dsn) as stream:
        await database.run("INSERT INTO t VALUES (1)")
        await events(stream, 1)
        position = stream.position
        stream.stored(position)
    await database.run("INSERT INTO t VALUES (2)")
    await database.unread(SLOT)
    return position


async def opened(database: Database, position: str) -> None:
    async with a_stream(database.dsn, after=position):
        pass


async def test_a_slot_that_was_dropped_is_a_lost_history(database: Database) -> None:
    position = await read_some(database)
    await database.run("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    with pytest.raises(OriginHistoryLost, match="is gone"):
        await opened(database, position)


async def test_a_slot_of_the_same_name_that_was_made_anew_is_a_lost_history(
    database: Database,
) -> None:
    position = await read_some(database)
    await database.run("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    await database.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    with pytest.raises(OriginHistoryLost, match="made anew"):
        await opened(database, position)


async def test_a_slot_that_somebody_else_has_read_is_a_lost_history(database: Database) -> None:
    position = await read_some(database)
    await database.run("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (SLOT,))
    with pytest.raises(OriginHistoryLost, match="somebody else"):
        await opened(database, position)


async def test_a_publication_that_was_missing_when_something_changed_is_a_lost_history(
    database: Database,
) -> None:
    """PostgreSQL 18 leaves such changes out and goes on."""
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO t VALUES (1)")
            position = str((await events(stream, 1))[0].source)
            await database.run("DROP PUBLICATION headgate_shop")
            assert "was dropped" in (await origin.standing(position)).warning
            await database.run("INSERT INTO t VALUES (2)")
            with pytest.raises(OriginHistoryLost, match="publication was missing"):
                await events(stream, 1)
        # Whoever goes on makes it again, and what nobody was told is lost all the same.
        with pytest.raises(OriginHistoryLost, match="publication was missing"):
            async with origin.open(position, begin_at=BEGIN_NOW) as stream:
                await events(stream, 1)
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.run("INSERT INTO t VALUES (3)")
            assert [one.key for one in await events(stream, 1)] == ["3"]


async def test_a_publication_that_nothing_was_changed_without_is_no_loss(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION given FOR TABLE t")
    async with a_stream(database.dsn, publication="given") as stream:
        async with database.connection.transaction():
            await database.run("DROP PUBLICATION given")
            await database.run("CREATE PUBLICATION given FOR TABLE t")
        await database.run("INSERT INTO t VALUES (1)")
        assert [one.key for one in await events(stream, 1)] == ["1"]


async def test_a_slot_that_is_made_anew_just_before_it_is_read_is_a_lost_history(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = await read_some(database)
    start = link.Link.start

    async def late(self: link.Link, slot: str, lsn: int, options: dict[str, str]) -> None:
        await database.run("SELECT pg_drop_replication_slot(%s)", (slot,))
        await database.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        await start(self, slot, lsn, options)

    monkeypatch.setattr(link.Link, "start", late)
    with pytest.raises(OriginHistoryLost, match="made anew"):
        await opened(database, position)


async def test_what_somebody_has_of_another_history_is_a_lost_one(database: Database) -> None:
    """As of a standby that was promoted without the very last, which one partition has."""
    position = position_from(await read_some(database))
    async with a_stream(database.dsn, after=str(position), level=str(position)):
        pass
    for level in (
        type(position)(position.system, 1, position.lsn + 10**9),
        type(position)(position.system, 2, position.lsn, 1),
    ):
        with pytest.raises(OriginHistoryLost, match="promoted"):
            async with a_stream(database.dsn, after=str(position), level=str(level)):
                pass


async def test_another_database_system_and_a_position_ahead_of_it_are_a_lost_history(
    database: Database,
) -> None:
    position = position_from(await read_some(database))
    for field, wrong, why in (
        ("system", position.system + 1, "another database system"),
        ("lsn", position.lsn + 10**9, "put back to an earlier state"),
        ("timeline", 2, "promoted"),
    ):
        fields = {"system": position.system, "timeline": 1, "lsn": position.lsn, field: wrong}
        with pytest.raises(OriginHistoryLost, match=why):
            await opened(database, str(type(position)(**fields)))
    await opened(database, str(position))


async def test_a_slot_that_the_server_has_given_up_is_a_lost_history() -> None:
    with Postgres(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as server:
        async with (
            await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as connection,
            an_origin(server.dsn) as origin,
        ):
            await connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            async with origin.open("", begin_at=BEGIN_NOW) as stream:
                position = stream.position
            assert (await origin.standing(position)).warning == ""
            for _ in range(3):
                await connection.execute(
                    "CREATE TABLE x AS SELECT repeat('x', 900) FROM generate_series(1, 20000)"
                )
                await connection.execute("DROP TABLE x")
                await connection.execute("SELECT pg_switch_wal()")
                await connection.execute("CHECKPOINT")
            assert "given up" in (await origin.standing(position)).warning
            with pytest.raises(OriginHistoryLost, match="given up"):
                async with origin.open(position, begin_at=BEGIN_NOW):
                    pass
            # Beginning anew makes a new one.
            async with origin.open("", begin_at=BEGIN_NOW) as stream:
                await connection.execute("INSERT INTO t VALUES (1)")
                assert len(await events(stream, 1)) == 1


async def test_a_slot_that_is_read_is_nobody_elses(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with an_origin(database.dsn) as origin, origin.open("", begin_at=BEGIN_NOW) as stream:
        for after in ("", stream.position):
            with pytest.raises(OriginUnavailable, match="somebody else reads"):
                async with a_stream(database.dsn, after=after):
                    pass
        await database.run("INSERT INTO t VALUES (1)")
        assert len(await events(stream, 1)) == 1
    await database.run("SELECT pg_create_physical_replication_slot('other')")
    with pytest.raises(OriginRefused, match="for standbys"):
        async with a_stream(database.dsn, slot="other"):
            pass
    await database.run("SELECT pg_drop_replication_slot('other')")


async def test_what_was_never_stored_is_never_acknowledged(database: Database) -> None:
    """Not even what lies beyond the end of what was received."""
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with an_origin(database.dsn) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            start = stream.position
            await database.run("INSERT INTO t VALUES (1)")
            [first] = await events(stream, 1)
            stream.stored(start)
        async with origin.open(start, begin_at=BEGIN_NOW) as stream:
            assert await events(stream, 1) == [first]
            stream.stored(str(position_from(start).__class__(1, 1, 2**62)))
        [(confirmed, end)] = await database.run(
            "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0'), "
            "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') FROM pg_replication_slots "
            "WHERE slot_name = %s",
            (SLOT,),
        )
        assert confirmed <= end


async def test_a_large_transaction_passes_through_without_being_held(database: Database) -> None:
    rows = 100_000
    await database.run("CREATE TABLE t (id int PRIMARY KEY, body text)")
    async with a_stream(database.dsn) as stream:
        await database.run(
            "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, %s) i", (rows,)
        )
        last, me = "", psutil.Process()
        found = len((await stream.next()).events)
        before = most = me.memory_info().rss
        while found < rows:
            changes = await stream.next()
            for event in changes.events:
                found += 1
                assert event.key == str(found)
                assert (event.source or "") > last
                last = event.source or ""
            most = max(most, me.memory_info().rss)
    assert most - before < GROWTH_MOST


@pytest.mark.parametrize("failover", ["on", "off"])
async def test_a_promoted_standby_goes_on_exactly_or_says_that_it_cannot(
    failover: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slot that fails over nothing is missing or comes twice; without one it is said."""
    monkeypatch.setattr(link, "STATUS_S", 0.2)
    with Postgres() as primary:
        await asyncio.to_thread(execute, primary.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        with Standby(primary) as standby:
            dsn = (
                f"host=127.0.0.1,127.0.0.1 port={primary.port},{standby.port} user=postgres "
                "dbname=postgres"
            )
            async with a_stream(dsn, failover=failover) as stream:
                if failover == "on":
                    async with asyncio.timeout(40):
                        while not await asyncio.to_thread(is_synced, standby):
                            await stream.next()
                            stream.stored(stream.position)
                for number in (1, 2, 3):
                    await insert(primary.dsn, number)
                first = (await events(stream, 2))[:2]  # they may come together
                taken = str(first[1].source)
                stream.stored(taken)
            await until(lambda: has_row(standby.dsn, 3), timeout_s=20)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.promote)
            await insert(standby.dsn, 4)
            if failover == "off":
                with pytest.raises(OriginHistoryLost, match="is gone"):
                    async with a_stream(dsn, after=taken, failover=failover):
                        pass
                return
            async with a_stream(dsn, after=taken, failover=failover) as stream:
                rest = await events(stream, 2)
            assert documents([*first, *rest]) == [{"id": number} for number in (1, 2, 3, 4)]
            positions = [str(one.source) for one in (*first, *rest)]
            assert positions == sorted(set(positions))
            assert [position_from(one).timeline for one in positions] == [1, 1, 1, 2]


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


async def insert(dsn: str, number: int) -> None:
    await asyncio.to_thread(execute, dsn, f"INSERT INTO t VALUES ({number})")


def is_synced(standby: Standby) -> bool:
    standby.invite_slots()
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT synced AND NOT temporary AND invalidation_reason IS NULL "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (SLOT,),
        ).fetchone()
        return bool(found and found[0])


def has_row(dsn: str, number: int) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM t WHERE id = %s", (number,)).fetchone()
        return found is not None
