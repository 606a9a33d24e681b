"""What only the log in PostgreSQL can go through: servers killed, paused, locked, full, cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from headgate.adapters.postgres.log_reader import PostgresLogReader, stored_partitions
from headgate.adapters.postgres.log_writer import PostgresLogWriter
from headgate.errors import (
    DataFolderError,
    InvalidConfig,
    InvalidRequest,
    NotNow,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
)
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent, Retention
from tests.contracts.faulty_disk import fill_up, mount_tiny_disk
from tests.contracts.link import Link
from tests.servers.postgres import Postgres
from tests.servers.process import free_port

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)
BIG = b'"' + b"x" * 100_000 + b'"'
ROOT = Path(__file__).parents[2]


@pytest.fixture
def schema() -> str:
    return f"faults_{uuid4().hex[:12]}"


async def append(writer: PostgresLogWriter, *ids: str, document: bytes = b"{}") -> list[Appended]:
    events = [Event(event_id, document) for event_id in ids]
    return await writer.append(REF, events, version=1, now_ms=1)


@contextlib.asynccontextmanager
async def opened(
    dsn: str, schema: str, **bounds: float
) -> AsyncIterator[tuple[PostgresLogWriter, PostgresLogReader]]:
    writer = PostgresLogWriter(dsn, schema=schema, **bounds)  # type: ignore[arg-type]
    reader = PostgresLogReader(dsn, schema=schema, timeout_s=bounds.get("timeout_s", 10.0))
    await writer.open(REF, epoch=1)
    try:
        yield writer, reader
    finally:
        await writer.close()
        await reader.close()


async def found(reader: PostgresLogReader) -> list[str]:
    return [record.event_id for record in await reader.read(REF, after_seq=0, limit=100_000)]


# --- the server dies, or nearly ------------------------------------------------------------------


async def test_a_server_killed_in_mid_load_loses_nothing_and_appends_go_on_after_it(
    schema: str,
) -> None:
    """The callers do what an owner does: try again, after an unknown outcome was looked up."""
    with Postgres() as server:
        async with opened(server.dsn, schema) as (writer, reader):
            acknowledged: dict[str, int] = {}
            stopping = asyncio.Event()
            numbers = count()

            async def caller() -> None:
                while not stopping.is_set():
                    name = next(numbers)
                    ids = [f"{name}-{part}" for part in range(5)]
                    acknowledged.update(await _until_written(writer, ids))

            callers = [asyncio.ensure_future(caller()) for _ in range(8)]
            for _ in range(3):
                before = len(acknowledged)
                await _grown(acknowledged, before + 300)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
            await _grown(acknowledged, len(acknowledged) + 300)
            stopping.set()
            await asyncio.gather(*callers)
            records = await reader.read(REF, after_seq=0, limit=1_000_000)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert {record.event_id: record.seq for record in records} == acknowledged
    requests = Counter(event_id.rpartition("-")[0] for event_id in acknowledged)
    assert set(requests.values()) == {5}


async def _until_written(writer: PostgresLogWriter, ids: list[str]) -> dict[str, int]:
    while True:
        try:
            answers = await append(writer, *ids)
            return {event_id: one.seq for event_id, one in zip(ids, answers, strict=True)}
        except OutcomeUnknown:
            with contextlib.suppress(StorageFailed, NotNow):
                there = await writer.find(REF, ids)
                assert len(there) in (0, len(ids)), "half a request"
                if there:
                    return there
        except StorageFailed:
            pass


async def _grown(acknowledged: dict[str, int], size: int) -> None:
    async with asyncio.timeout(60):
        while len(acknowledged) < size:  # noqa: ASYNC110 - the callers needn't know who watches
            await asyncio.sleep(0.01)


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@contextlib.contextmanager
def paused(server: Postgres) -> Iterator[None]:
    process = psutil.Process(server.pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        member.suspend()
    try:
        yield
    finally:
        for member in family:
            member.resume()


async def test_no_call_hangs_on_a_paused_server(own_server: Postgres, schema: str) -> None:
    bounds = {"timeout_s": 0.3, "commit_timeout_s": 0.5}
    async with opened(own_server.dsn, schema, **bounds) as (writer, reader):
        await append(writer, "a")
        with paused(own_server):
            async with asyncio.timeout(30):
                outcomes = await asyncio.gather(
                    *(append(writer, f"e{number}") for number in range(5)),
                    writer.find(REF, ["a"]),
                    reader.extent(REF),
                    return_exceptions=True,
                )
                assert {type(outcome) for outcome in outcomes} == {StorageFailed}
                reading = asyncio.ensure_future(reader.extent(REF))
                await asyncio.sleep(0.05)
                reading.cancel()  # A caller that goes away is let go at once.
                with pytest.raises(asyncio.CancelledError):
                    async with asyncio.timeout(1):
                        await reading
        async with asyncio.timeout(20):
            answer = None
            while answer is None:
                with contextlib.suppress(StorageFailed):
                    answer = await append(writer, "b")
        assert answer == [Appended(2)]
        assert await found(reader) == ["a", "b"]


async def test_a_server_that_isnt_there_is_a_definite_failure(schema: str) -> None:
    dsn = f"host=127.0.0.1 port={free_port()} user=me password=hunter2 dbname=x"
    writer = PostgresLogWriter(dsn, schema=schema, timeout_s=0.3)
    reader = PostgresLogReader(dsn, schema=schema, timeout_s=0.3)
    async with asyncio.timeout(30):
        for attempt in (writer.open(REF, epoch=1), reader.extent(REF), writer.find(REF, ["a"])):
            with pytest.raises(StorageFailed, match="PostgreSQL can't be reached") as failed:
                await attempt
            assert "hunter2" not in str(failed.value)
        with pytest.raises(StorageFailed):
            reader.read_arrow(REF, after_seq=0, up_to_seq=9).read_all()
        async with reader.follow([REF]) as wakes:
            assert await anext(wakes) == {REF}
        await writer.close()
        await reader.close()


def test_what_is_no_address_is_refused_without_being_repeated() -> None:
    for kind in (PostgresLogWriter, PostgresLogReader):
        with pytest.raises(InvalidConfig, match=r"log\.dsn must be the address") as refused:
            kind("postgres hunter2")
        assert "hunter2" not in str(refused.value)


# --- the answer to a commit gets lost ------------------------------------------------------------


@pytest.mark.parametrize("arrives", [True, False], ids=["written", "not written"])
async def test_a_commit_whose_answer_got_lost_is_unknown_and_find_tells(
    postgres: Postgres, schema: str, arrives: bool
) -> None:
    async with (
        Link(postgres.port) as link,
        opened(link.through(postgres.dsn), schema) as (writer, reader),
    ):
        await append(writer, "a")
        link.cut_at(b"COMMIT", after_forwarding=arrives)
        with pytest.raises(OutcomeUnknown, match="may or may not be stored"):
            await append(writer, "b", "c")
        there = await writer.find(REF, ["a", "b", "c"])
        assert there == ({"a": 1, "b": 2, "c": 3} if arrives else {"a": 1})
        assert await append(writer, "b", "c") == [Appended(2, arrives), Appended(3, arrives)]
        assert await found(reader) == ["a", "b", "c"]


async def test_find_waits_for_a_commit_that_is_still_on_its_way(
    own_server: Postgres, schema: str
) -> None:
    """A transaction of our own stands for one whose client gave up before the server got to it."""
    async with opened(own_server.dsn, schema) as (writer, reader):
        await append(writer, "a")
        async with await psycopg.AsyncConnection.connect(own_server.dsn) as slow:
            # A write that somebody else left in the middle: find must not answer before its end.
            await slow.execute(f'SELECT 1 FROM "{schema}".partitions FOR UPDATE')
            await slow.execute(f"INSERT INTO \"{schema}\".ids_1 VALUES ('b', 2, 1)")
            finding = asyncio.ensure_future(writer.find(REF, ["a", "b"]))
            await asyncio.wait([finding], timeout=0.2)
            assert not finding.done()
            await slow.commit()
        assert await finding == {"a": 1, "b": 2}
        assert (await reader.extent(REF)).head == 1


async def test_a_connection_lost_before_its_commit_is_replaced_within_the_call(
    postgres: Postgres, schema: str
) -> None:
    async with (
        Link(postgres.port) as link,
        opened(link.through(postgres.dsn), schema) as (writer, reader),
    ):
        await append(writer, "a")
        link.cut_at(b"INSERT INTO", after_forwarding=True)
        assert await append(writer, "b", "c") == [Appended(2), Appended(3)]
        assert link.cuts == 1
        assert await found(reader) == ["a", "b", "c"]


async def test_appends_share_a_slow_commit(postgres: Postgres, schema: str) -> None:
    async with (
        Link(postgres.port) as link,
        opened(link.through(postgres.dsn), schema) as (writer, _),
    ):
        await append(writer, "a")
        link.delay_at(b"COMMIT", 0.3)
        answers = await asyncio.gather(*(append(writer, f"e{number}") for number in range(100)))
        assert sorted([one.seq for [one] in answers]) == list(range(2, 102))
        assert link.delays <= 2, "the first alone, the rest together"


async def test_a_commit_that_no_standby_has_confirmed_is_unknown_also_when_its_wait_is_cancelled(
    own_server: Postgres, schema: str
) -> None:
    """The server says that it has committed then, and merely warns."""
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    async with opened(own_server.dsn, schema) as (writer, _):

        async def append_many() -> None:
            for number in count():
                await append(writer, f"e{number}")

        async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as admin:
            await admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            await admin.execute("SELECT pg_reload_conf()")
            appending = asyncio.ensure_future(append_many())
            async with asyncio.timeout(8):
                while not appending.done():  # It takes a moment until commits wait.
                    await admin.execute(cancel)
                with pytest.raises(OutcomeUnknown, match=r"PostgreSQL warns \(cancel"):
                    await appending
            await admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await admin.execute("SELECT pg_reload_conf()")


# --- the database refuses ------------------------------------------------------------------------


async def test_a_locked_partition_is_a_failure_and_not_a_hang(
    postgres: Postgres, schema: str
) -> None:
    async with opened(postgres.dsn, schema, timeout_s=1.0) as (writer, _):
        with psycopg.connect(postgres.dsn) as intruder:
            intruder.execute(f'LOCK TABLE "{schema}".partitions IN EXCLUSIVE MODE')
            for attempt in (append(writer, "a"), writer.find(REF, ["a"])):
                with pytest.raises(StorageFailed):
                    await attempt
        assert await append(writer, "a") == [Appended(1)]


async def test_values_that_postgresql_refuses_concern_their_request_alone(
    postgres: Postgres, schema: str
) -> None:
    async with opened(postgres.dsn, schema) as (writer, reader):
        outcomes = await asyncio.gather(
            append(writer, "a"),
            append(writer, "b", os.urandom(20_000).hex()),
            append(writer, "c"),
            return_exceptions=True,
        )
        assert [type(one) for one in outcomes] == [list, InvalidRequest, list]
        assert await found(reader) == ["a", "c"]
        with pytest.raises(InvalidRequest):
            await writer.open(PartitionRef("zero\0", 0), epoch=1)


async def test_what_waits_is_bounded(postgres: Postgres, schema: str) -> None:
    async with opened(postgres.dsn, schema, max_waiting_bytes=250_000) as (writer, _):
        outcomes = await asyncio.gather(
            *(append(writer, f"e{number}", document=BIG) for number in range(4)),
            return_exceptions=True,
        )
        assert [type(one) for one in outcomes] == [list, list, Overloaded, Overloaded]
        assert await append(writer, "later", document=BIG * 4) == [Appended(3)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mount_tiny_disk(tmp_path / "tiny", "1m")


async def test_a_full_disk_refuses_whole_requests_until_there_is_room(
    postgres: Postgres, schema: str, tiny_disk: Path
) -> None:
    """Only the tables lie on the tiny disk: a server without room for its own log would stop."""
    space = tiny_disk / "space"
    space.mkdir(mode=0o700)
    shutil.chown(space, pwd.getpwnam("nobody").pw_uid)
    for folder in space.parents:
        if folder.is_relative_to("/tmp/pytest-of-root") and os.geteuid() == 0:
            folder.chmod(0o755)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE \"{schema}\" LOCATION '{space}'")
    dsn = f"{postgres.dsn} options='-c default_tablespace={schema}'"
    async with opened(dsn, schema) as (writer, reader):
        await append(writer, "a")
        ballast = fill_up(tiny_disk)
        noise = os.urandom(90_000).hex().encode()
        for _ in range(2):
            with pytest.raises(StorageFailed, match="the database's disk is full"):
                await append(writer, "b", "c", "d", document=noise)
        assert await writer.find(REF, ["b", "c", "d"]) == {}
        assert await reader.extent(REF) == Extent(1, 1)
        ballast.unlink()
        assert await append(writer, "b", "c") == [Appended(2), Appended(3)]
        assert await found(reader) == ["a", "b", "c"]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
        connection.execute(f'DROP TABLESPACE "{schema}"')


async def test_a_schema_of_a_newer_format_is_refused(postgres: Postgres, schema: str) -> None:
    async with opened(postgres.dsn, schema):
        pass
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'UPDATE "{schema}".format SET version = 9')
    writer = PostgresLogWriter(postgres.dsn, schema=schema)
    with pytest.raises(DataFolderError, match="was written by a newer Headgate"):
        await writer.open(REF, epoch=1)
    await writer.close()


# --- readers -------------------------------------------------------------------------------------


async def test_followers_hear_again_after_the_server_came_back(
    own_server: Postgres, schema: str
) -> None:
    async with opened(own_server.dsn, schema) as (writer, _):
        reader = PostgresLogReader(own_server.dsn, schema=schema, safety_s=60)
        async with asyncio.timeout(30), reader.follow([REF, OTHER]) as wakes:
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
            assert await anext(wakes) == {REF, OTHER}, "something may have gone by"
            await append(writer, "a")
            assert await anext(wakes) == {REF}
        await reader.close()


def test_one_reader_serves_several_event_loops_one_after_the_other(
    postgres: Postgres, schema: str
) -> None:
    reader = PostgresLogReader(postgres.dsn, schema=schema)

    async def write() -> None:
        async with opened(postgres.dsn, schema) as (writer, _):
            await append(writer, "a")

    async def read() -> list[str]:
        async with reader.follow([REF]):
            return await found(reader)

    assert asyncio.run(read()) == []
    asyncio.run(write())
    assert asyncio.run(read()) == ["a"]
    assert stored_partitions(postgres.dsn, schema=schema) == [REF]
    assert stored_partitions(postgres.dsn, schema="nothing_here") == []
    asyncio.run(reader.close())


FORKING = """
import asyncio, os, sys
from headgate.adapters.postgres.log_reader import PostgresLogReader
from headgate.model.event import PartitionRef

ref = PartitionRef("flights", 0)
reader = PostgresLogReader(sys.argv[1], schema=sys.argv[2])
loop = asyncio.new_event_loop()

def look():
    return loop.run_until_complete(reader.extent(ref)).head

assert look() == 1
child = os.fork()
if child == 0:
    assert reader.read_arrow(ref, after_seq=0, up_to_seq=9).read_all().num_rows == 1
    loop = asyncio.new_event_loop()
    assert look() == 1
    os._exit(0)
_, status = os.waitpid(child, 0)
assert look() == 1
loop.run_until_complete(reader.close())
sys.exit(os.waitstatus_to_exitcode(status))
"""


async def test_a_connection_never_crosses_a_fork(postgres: Postgres, schema: str) -> None:
    async with opened(postgres.dsn, schema) as (writer, _):
        await append(writer, "a")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FORKING, postgres.dsn, schema],
        cwd=ROOT,
        timeout=30,
    )
    assert done.returncode == 0


# --- the server is slow --------------------------------------------------------------------------


async def test_what_is_too_much_for_one_turn_of_retention_is_dropped_by_and_by(
    postgres: Postgres, schema: str
) -> None:
    """Three megabytes, of which the server drops four in a second and has 0.4 s for a turn."""
    async with opened(postgres.dsn, schema, timeout_s=0.4) as (writer, reader):
        for number in range(30):
            await append(writer, f"e{number}", document=BIG)
        await _drops_slowly(postgres.dsn, schema)
        retention = Retention(max_bytes=150_000)
        async with asyncio.timeout(15):
            while (await reader.extent(REF)).earliest < 30:
                # As at the next look (log.retention.every); the time may be up at its commit, too.
                with contextlib.suppress(StorageFailed, OutcomeUnknown):
                    await writer.retain(REF, retention, settled=30, ids_ms=10**9, now_ms=2)
        assert await found(reader) == ["e29"]
        assert await append(writer, "next") == [Appended(31)]


async def _drops_slowly(dsn: str, schema: str) -> None:
    function = (
        f"CREATE FUNCTION {schema}.take_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM pg_sleep(octet_length(OLD.document) / 4000000.0); RETURN OLD; END $$"
    )
    trigger = (
        f"CREATE TRIGGER slow BEFORE DELETE ON {schema}.records_1"
        f" FOR EACH ROW EXECUTE FUNCTION {schema}.take_long()"
    )
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as server:
        await server.execute(function)
        await server.execute(trigger)
