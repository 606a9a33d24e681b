"""Rows of tables as snapshots read them, on a real server: each once, as its changes tell it, with
a place in the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from headgate.adapters.pgoutput import tables
from headgate.adapters.pgoutput.stream import PostgresChangeStream
from headgate.errors import OriginRefused, OriginUnavailable
from headgate.model.event import Event
from tests.adapters.pgoutput.conftest import Database
from tests.adapters.pgoutput.reading import a_stream, documents, events
from tests.servers.postgres import Postgres

IMPATIENT_S = 0.01
FEW = 7


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", FEW)
    monkeypatch.setattr(tables, "FIRST_FETCH", 2)


async def all_rows(stream: PostgresChangeStream, table: str, behind: str = "") -> list[Event]:
    """Chunk by chunk, each when the stream has told all that is in it."""
    found: list[Event] = []
    while True:
        chunk = await stream.chunk(table, behind)
        assert len(chunk.rows) <= FEW
        async with asyncio.timeout(30):
            while stream.position < chunk.upto:
                await stream.next(IMPATIENT_S)
        found += chunk.rows
        if chunk.behind is None:
            return found
        behind = chunk.behind


async def test_a_row_is_told_as_its_change_is(database: Database) -> None:
    await database.run(
        "CREATE TABLE things (at timestamptz, name text, price numeric, tags text[], raw bytea, "
        '"% of %b" int, twice int GENERATED ALWAYS AS (length(name) * 2) STORED, '
        "PRIMARY KEY (name, at))"
    )
    async with a_stream(database.dsn) as stream:
        await database.run(
            "INSERT INTO things SELECT timestamptz '2026-01-02 03:04:05Z' + i * interval '1 s', "
            "'n' || i % 5, i / 7.0, ARRAY['a', NULL], decode('00ff', 'hex'), "
            "nullif(i, 7) FROM generate_series(1, 23) i"
        )
        told = await events(stream, 23)
        rows = await all_rows(stream, "public.things")
    assert {one.op for one in rows} == {"read"}
    assert sorted((one.key or "", one.document) for one in rows) == sorted(
        (one.key or "", one.document) for one in told
    )
    assert len(rows) == 23


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("uuid", "gen_random_uuid()"),
        ("float8", "random() * 1e9 - 5e8"),
        ("date", "date '2026-01-01' + i"),
        ("numeric", "i * 1.10"),
        ("bytea", "decode(md5(i::text), 'hex')"),
        ('text COLLATE "C"', "chr(64 + i % 60) || i"),
        ("int4range", "int4range(i, i + 5)"),
        ("character(6)", "'x' || i"),
    ],
    ids=lambda one: one.split()[0],
)
async def test_every_kind_of_key_leads_on(database: Database, kind: str, values: str) -> None:
    await database.run(f"CREATE TABLE t (id {kind} PRIMARY KEY)")
    await database.run(f"INSERT INTO t SELECT {values} FROM generate_series(1, 40) i")
    async with a_stream(database.dsn) as stream:
        rows = await all_rows(stream, "public.t")
    assert len({one.key for one in rows}) == len(rows) == 40


async def test_who_waits_for_the_stream_is_told_when_rows_can_be_handed_in(
    database: Database,
) -> None:
    """Although nothing has changed, and however patient he is."""
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("INSERT INTO t SELECT generate_series(1, 5)")
    async with a_stream(database.dsn) as stream, asyncio.timeout(60):
        waiting = asyncio.create_task(stream.next(patience_s=3600))
        chunk = await stream.chunk("public.t", "")
        changes = await waiting
    assert len(chunk.rows) == 5
    assert changes.events == []
    assert changes.position >= chunk.upto


async def test_what_is_published_is_read_and_nothing_else(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY, shown text, hidden text)")
    await database.run("INSERT INTO t SELECT i, 'a', 'b' FROM generate_series(1, 9) i")
    await database.run("CREATE TABLE others (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION shown FOR TABLE t (id, shown) WHERE (id % 2 = 0)")
    async with a_stream(database.dsn, publication="shown") as stream:
        listing = await stream.listing()
        rows = await all_rows(stream, "public.t")
        others = await stream.chunk("public.others", "")
    assert set(listing.collections) == {"public.t"}
    assert "public.others" in listing.unread
    assert documents(rows) == [{"id": number, "shown": "a"} for number in (2, 4, 6, 8)]
    assert (others.rows, others.behind, others.is_away) == ([], None, True)


async def test_a_table_that_goes_by_another_name_is_away_and_no_empty_one(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    async with a_stream(database.dsn) as stream:
        assert not (await stream.chunk("public.t", "")).is_away
        await database.run("ALTER TABLE t RENAME TO elsewhere")
        assert (await stream.chunk("public.t", "")).is_away


async def test_partitions_are_read_as_their_table_and_children_as_their_own(
    database: Database,
) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    await database.run("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    await database.run("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (100)")
    await database.run("INSERT INTO t SELECT i, i FROM generate_series(1, 20) i")
    await database.run("CREATE TABLE parent (id int PRIMARY KEY)")
    await database.run("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    await database.run("INSERT INTO parent VALUES (1)")
    await database.run("INSERT INTO child VALUES (2)")
    async with a_stream(database.dsn) as stream:
        assert set((await stream.listing()).collections) == {
            "public.t",
            "public.parent",
            "public.child",
        }
        assert len(await all_rows(stream, "public.t")) == 20
        assert [one.key for one in await all_rows(stream, "public.parent")] == ["1"]


async def test_a_key_that_means_something_else_begins_anew(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("INSERT INTO t SELECT generate_series(1, 20)")
    async with a_stream(database.dsn) as stream:
        chunk = await stream.chunk("public.t", "")
        assert [one.key for one in chunk.rows] == [str(number) for number in range(1, 8)]
        assert chunk.behind is not None
        await database.run("ALTER TABLE t ALTER id TYPE text")
        rows = await all_rows(stream, "public.t", chunk.behind)
        assert len(rows) == 20
        await database.run("DROP TABLE t")
        await database.run("CREATE TABLE t (id text PRIMARY KEY)")
        await database.run("INSERT INTO t VALUES ('1')")
        assert [one.key for one in await all_rows(stream, "public.t", chunk.behind)] == ["1"]
        await database.run("DROP TABLE t")
        assert (await stream.chunk("public.t", chunk.behind)).rows == []


async def test_a_table_without_a_key_is_refused_by_name(database: Database) -> None:
    await database.run("CREATE TABLE t (id int)")
    async with a_stream(database.dsn) as stream:
        with pytest.raises(OriginRefused, match=r"public\.t has no key .* primary key"):
            await stream.chunk("public.t", "")


async def test_who_may_read_changes_alone_is_told_what_lacks(database: Database) -> None:
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("CREATE PUBLICATION shown FOR TABLE t")
    role = f"reader_{database.name}"
    await database.run(f"CREATE ROLE {role} LOGIN REPLICATION")
    dsn = database.dsn.replace("user=postgres", f"user={role}")
    try:
        async with a_stream(dsn, publication="shown") as stream:
            with pytest.raises(OriginRefused, match="SELECT on the tables"):
                await stream.chunk("public.t", "")
            await database.run(f"GRANT SELECT ON t TO {role}")
            assert (await stream.chunk("public.t", "")).behind is None
    finally:
        await database.run(f"DROP OWNED BY {role}")
        await database.run(f"DROP ROLE {role}")


async def test_large_rows_make_small_chunks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BYTES", 100_000)
    await database.run("CREATE TABLE t (id int PRIMARY KEY, body text)")
    await database.run("INSERT INTO t SELECT i, repeat('x', 60000) FROM generate_series(1, 9) i")
    async with a_stream(database.dsn) as stream:
        assert len((await stream.chunk("public.t", "")).rows) == 2
        assert len(await all_rows(stream, "public.t")) == 9


@pytest.fixture
def strict() -> Iterator[Postgres]:
    """Commits wait for a standby that isn't there."""
    with Postgres() as server:
        yield server


async def test_rows_have_all_that_was_told_though_nobody_sees_it_yet(strict: Postgres) -> None:
    """A commit is told when it is on disk, and seen when a standby has it, too."""
    async with await psycopg.AsyncConnection.connect(strict.dsn, autocommit=True) as admin:
        await admin.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        await admin.execute("INSERT INTO t VALUES (1, 1)")
        async with a_stream(strict.dsn) as stream:
            assert len((await stream.chunk("public.t", "")).rows) == 1
            await admin.execute("SET synchronous_commit = local")
            await admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            await admin.execute("SELECT pg_reload_conf()")
            other = await psycopg.AsyncConnection.connect(strict.dsn, autocommit=True)
            waiting = asyncio.ensure_future(other.execute("UPDATE t SET n = 2"))
            [told] = await events(stream, 1)
            assert documents([told]) == [{"id": 1, "n": 2}]
            assert not waiting.done()
            reading = asyncio.ensure_future(stream.chunk("public.t", ""))
            done, _ = await asyncio.wait([reading], timeout=0.5)
            assert not done, "rows are older than what was told"
            await admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await admin.execute("SELECT pg_reload_conf()")
            assert documents(list((await reading).rows)) == [{"id": 1, "n": 2}]
            await waiting
            await other.close()


async def test_a_transaction_that_was_open_before_is_waited_for_and_named(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was told before anybody took notes, nobody knows."""
    monkeypatch.setattr(tables, "WAIT_S", 0.2)
    await database.run("CREATE TABLE t (id int PRIMARY KEY)")
    await database.run("INSERT INTO t VALUES (1)")
    other = await psycopg.AsyncConnection.connect(database.dsn)
    async with a_stream(database.dsn) as stream:
        await other.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(OriginUnavailable, match=r"before the transaction \d+ has ended"):
            await stream.chunk("public.t", "")
        await other.commit()
        assert len((await stream.chunk("public.t", "")).rows) == 2
    await other.close()


async def test_a_table_that_is_rewritten_meanwhile_is_not_taken_for_an_empty_one(
    database: Database,
) -> None:
    """Who took his view of the data before that would find nothing."""
    await database.run("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await database.run("INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    other = await psycopg.AsyncConnection.connect(database.dsn)
    async with a_stream(database.dsn) as stream:
        assert len((await stream.chunk("public.t", "")).rows) == 5
        await other.execute("ALTER TABLE t ALTER n TYPE bigint USING n * 2")
        reading = asyncio.ensure_future(stream.chunk("public.t", ""))
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass::oid"
        async with asyncio.timeout(20):
            while (await database.run(query))[0][0] == 0:  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)
        await other.commit()
        assert [row["n"] for row in documents(list((await reading).rows))] == [2, 4, 6, 8, 10]
    await other.close()
