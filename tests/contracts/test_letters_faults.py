"""Letter stores on disks that are full, slow, locked or damaged, and on servers that are away.

Every failure is StorageFailed, soon, and the same call works once the fault is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import msgspec
import psycopg
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters import changes as letter_changes
from headgate.adapters.embedded.letters import store as embedded
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.postgres.letters import PostgresLetterStore
from headgate.errors import DataFolderError, StorageFailed
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, LetterQuery, LetterReason, LetterState, NewLetter
from headgate.ports.letters import LetterStore
from headgate.services.coordinator.letters import COUNT_TIMEOUT_S
from tests.contracts.faulty_disk import faulty_disk
from tests.contracts.test_embedded_faults import files_at_most
from tests.contracts.test_postgres_faults import paused
from tests.servers.postgres import Postgres
from tests.servers.process import free_port

REF = PartitionRef("flights", 0)
HELD = {REF: Fence(1)}
EVERYTHING = LetterQuery(state=None)
SOON_S = 30.0


def letter(seq: int, *, size_bytes: int = 10) -> NewLetter:
    document = msgspec.Raw(b'"' + b"x" * size_bytes + b'"')
    what = Delivery("flights", 0, seq, f"e{seq}", "k", "", "insert", document, ("s",), 1)
    return NewLetter("g1", "parked", "unreachable", what)


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "data")


@pytest.fixture
async def store(folder: DataFolder) -> AsyncIterator[EmbeddedLetterStore]:
    store = EmbeddedLetterStore(folder)
    yield store
    await store.close()


def delete_files(folder: DataFolder) -> None:
    for file in folder.root.glob("letters.db*"):
        file.unlink()


async def seqs_on_disk(folder: DataFolder) -> list[int]:
    """What another process finds."""
    other = EmbeddedLetterStore(folder)
    found = await other.find(EVERYTHING)
    await other.close()
    return [one.delivery.seq for one in found]


@pytest.mark.parametrize("fate", ["deleted", "replaced"])
async def test_letters_go_where_others_find_them_when_their_file_is_deleted_or_replaced(
    store: EmbeddedLetterStore, folder: DataFolder, fate: str
) -> None:
    """A record is settled on the strength of a letter."""
    await store.put([letter(1)], HELD, now_ms=1)
    delete_files(folder)
    if fate == "replaced":
        assert await seqs_on_disk(folder) == []
    assert await store.find(EVERYTHING) == []
    await store.put([letter(2)], HELD, now_ms=1)
    assert await seqs_on_disk(folder) == [2]


async def test_a_letter_has_failed_when_its_file_is_deleted_before_it_is_committed(
    store: EmbeddedLetterStore, folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = letter_changes.put

    def deleted_meanwhile(connection: apsw.Connection, **wanted: Any) -> None:
        put(connection, **wanted)
        delete_files(folder)

    await store.put([letter(1)], HELD, now_ms=1)
    monkeypatch.setattr(letter_changes, "put", deleted_meanwhile)
    with pytest.raises(StorageFailed, match="was deleted, moved or replaced"):
        await store.put([letter(2)], HELD, now_ms=1)
    monkeypatch.undo()
    await store.put([letter(2)], HELD, now_ms=1)
    assert await seqs_on_disk(folder) == [2]


@pytest.mark.parametrize(
    "spoilt",
    [
        "delivery = x'7b00'",
        "delivery = unhex(replace(hex(delivery), hex('flights'), 'E6' || hex('lights')))",
        "delivery = unhex(replace(hex(delivery), hex('flights'), hex('glights')))",
        "error = CAST(x'fffe' AS TEXT)",
    ],
    ids=["no letter", "a flipped bit", "another topic", "no text"],
)
async def test_a_damaged_letter_is_shown_in_its_place(
    store: EmbeddedLetterStore, folder: DataFolder, spoilt: str
) -> None:
    """Anything else would end the lane that reads it, and every one after that."""
    await store.put([letter(1), letter(2)], HELD, now_ms=1)
    with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
        connection.execute(f"UPDATE letters SET {spoilt} WHERE seq = 2")
    found = await store.parked("g1", [REF], each=2)
    assert [(one.delivery.seq, bool(one.damage)) for one in found] == [(1, False), (2, True)]
    assert [bool(one.damage) for one in await store.find(EVERYTHING)] == [False, True]


DAMAGED: dict[str, str] = {
    "embedded": "UPDATE letters SET delivery = x'7b00' WHERE seq = 2",
    "postgres": "UPDATE {schema}.letters SET delivery = '\\x7b00' WHERE seq = 2",
}


@pytest.fixture(params=sorted(DAMAGED))
async def damaging(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[LetterStore, Callable[[], Awaitable[None]]]]:
    """A store, and what damages its letters of record 2."""
    if request.param == "embedded":
        folder = DataFolder.open(tmp_path / "data")

        async def damage() -> None:
            with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
                connection.execute(DAMAGED["embedded"])

        store: LetterStore = EmbeddedLetterStore(folder)
    else:
        server: Postgres = request.getfixturevalue("postgres")
        schema = f"letters_{uuid4().hex[:12]}"

        async def damage() -> None:
            async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as one:
                await one.execute(DAMAGED["postgres"].format(schema=schema).encode())

        store = PostgresLetterStore(server.dsn, schema=schema)
    yield store, damage
    await store.close()


Damaging = tuple[LetterStore, Callable[[], Awaitable[None]]]


async def test_a_letter_takes_the_place_of_a_damaged_one_and_nobody_is_forgotten(
    damaging: Damaging,
) -> None:
    """A put that failed would hold all that waits to be written for its gateway."""
    store, damage = damaging
    await store.put([letter(1), letter(2), letter(3)], HELD, now_ms=1)
    await damage()
    for _ in range(2):  # a lane that starts again may write the same
        await store.put([letter(2), letter(4)], HELD, now_ms=2)
        parked = await store.parked("g1", [REF], each=9)
        assert [one.delivery.seq for one in parked] == [1, 2, 3, 4]
        [dead] = await store.find(LetterQuery())
        assert dead.delivery == letter(2).delivery, "sent again, it goes to whoever is subscribed"
        assert "can't be read any more" in dead.error
    await damage()
    await store.put([letter(2)], HELD, now_ms=3)
    assert (await store.parked("g1", [REF], each=9))[1].delivery == letter(2).delivery
    assert [one.delivery for one in await store.find(LetterQuery())] == [letter(2).delivery]


async def test_a_letter_that_is_damaged_or_meets_a_damaged_one_is_buried(
    damaging: Damaging,
) -> None:
    store, damage = damaging
    rejected = msgspec.structs.replace(letter(2), state="dead", reason="rejected")
    await store.put([letter(1), letter(2), rejected], HELD, now_ms=1)
    parked = await store.parked("g1", [REF], each=9)
    await damage()
    buried = [msgspec.structs.replace(one, reason="rejected") for one in parked]
    await store.bury(buried, HELD, now_ms=2)
    assert [one.delivery for one in await store.find(EVERYTHING)] == [
        letter(1).delivery,
        letter(2).delivery,
    ]


async def test_a_damaged_letter_is_shown_and_deleted(damaging: Damaging) -> None:
    store, damage = damaging
    dead = [msgspec.structs.replace(letter(seq), state="dead") for seq in (1, 2, 3)]
    await store.put(dead, HELD, now_ms=1)
    await damage()
    found = await store.find(EVERYTHING)
    assert [(one.delivery.seq, bool(one.damage)) for one in found] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    assert (found[1].gateway_id, found[1].ref, found[1].at_ms) == ("g1", REF, 1)
    revived = await store.revive([one.id for one in found], now_ms=2)
    again = await store.revived([REF], after_id=0, limit=9)
    assert [(one.id, bool(one.damage)) for one in again] == [
        (one.id, bool(one.damage)) for one in found
    ]
    await store.bury(again, HELD, now_ms=3)
    assert [one.id for one in await store.find(LetterQuery())] == revived
    [damaged] = [one for one in await store.find(LetterQuery()) if one.damage]
    assert damaged.id == found[1].id, "nobody takes what was shown of it for the event"
    assert await store.delete([found[1].id]) == [found[1].id]
    assert [one.delivery.seq for one in await store.find(EVERYTHING)] == [1, 3]


async def test_no_letters_are_made_anew_in_a_folder_that_is_gone(
    store: EmbeddedLetterStore, folder: DataFolder
) -> None:
    """Its disk may just not be mounted."""
    await store.put([letter(1)], HELD, now_ms=1)
    away = folder.root.rename(folder.root.with_name("away"))
    folder.root.mkdir()
    with pytest.raises(StorageFailed, match="isn't there any more"):
        await store.put([letter(2)], HELD, now_ms=1)
    folder.root.rmdir()
    away.rename(folder.root)
    await store.put([letter(2)], HELD, now_ms=1)
    assert await seqs_on_disk(folder) == [1, 2]


async def test_counting_says_within_a_second_that_the_server_is_away() -> None:
    store = PostgresLetterStore(f"postgresql://127.0.0.1:{free_port()}/postgres")
    async with asyncio.timeout(COUNT_TIMEOUT_S):
        with pytest.raises(StorageFailed, match="PostgreSQL can't be reached"):
            await store.counts()
    await store.close()


async def _put_at_last(store: LetterStore, *letters: NewLetter) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            with contextlib.suppress(StorageFailed):
                return await store.put(letters, HELD, now_ms=1)


# --- embedded ------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_a_put_whole_and_takes_it_once_there_is_room(
    store: EmbeddedLetterStore,
) -> None:
    await store.put([letter(1)], HELD, now_ms=1)
    large = [letter(seq, size_bytes=100_000) for seq in range(2, 6)]
    with files_at_most(250_000):
        for _ in range(2):
            with pytest.raises(StorageFailed):
                await store.put(large, HELD, now_ms=1)
        assert await store.count(EVERYTHING) == 1
    await store.put(large, HELD, now_ms=1)
    assert await store.count(EVERYTHING) == 5


async def test_a_store_that_was_full_from_the_start_opens_once_there_is_room(
    store: EmbeddedLetterStore,
) -> None:
    with files_at_most(0), pytest.raises(StorageFailed):
        await store.put([letter(1)], HELD, now_ms=1)
    await store.put([letter(1)], HELD, now_ms=1)
    assert await store.count(EVERYTHING) == 1


async def test_a_file_locked_for_too_long_is_a_failure_and_not_a_hang(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "BUSY_TIMEOUT_MS", 50)
    store = EmbeddedLetterStore(folder)
    await store.put([letter(1)], HELD, now_ms=1)
    intruder = apsw.Connection(str(folder.letters_file))
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed, match="another process has locked the file"):
        await store.put([letter(2)], HELD, now_ms=1)
    assert await store.count(EVERYTHING) == 1, "reading goes on while another writes"
    intruder.execute("ROLLBACK")
    intruder.close()
    await store.put([letter(2)], HELD, now_ms=1)
    assert await store.count(EVERYTHING) == 2
    await store.close()


async def test_a_disk_that_hangs_is_a_failure_in_time_for_everybody_who_waits(
    folder: DataFolder,
) -> None:
    with faulty_disk() as disk:
        store = EmbeddedLetterStore(folder, timeout_s=0.2)
        await _put_at_last(
            store, letter(1)
        )  # where nothing hangs, too, a busy machine takes longer
        disk.stalls_s[str(folder.letters_file)] = 1.0
        calls = [store.put([letter(seq)], HELD, now_ms=1) for seq in range(2, 6)]
        outcomes = await asyncio.gather(*calls, store.counts(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFailed] * 5
        assert "took longer than 0.2 s" in str(outcomes[0])
        await _put_at_last(store, *(letter(seq) for seq in range(2, 6)))
        await store.close()
        patient = EmbeddedLetterStore(folder)
        assert await patient.count(EVERYTHING) == 5
        await patient.close()


async def test_a_commit_that_the_disk_didnt_confirm_may_be_asked_for_again(
    folder: DataFolder,
) -> None:
    with faulty_disk() as disk:
        store = EmbeddedLetterStore(folder)
        await store.put([letter(1)], HELD, now_ms=1)
        disk.sync_fails = True
        with pytest.raises(StorageFailed):
            await store.put([letter(2)], HELD, now_ms=1)
        disk.sync_fails = False
        await store.put([letter(2)], HELD, now_ms=1)
        assert await store.count(EVERYTHING) == 2
        await store.close()


async def test_a_damaged_file_is_a_sentence(folder: DataFolder) -> None:
    folder.letters_file.write_bytes(b"this was a letter file once" * 100)
    store = EmbeddedLetterStore(folder)
    with pytest.raises(StorageFailed, match="the file is damaged"):
        await store.put([letter(1)], HELD, now_ms=1)
    await store.close()


async def test_a_file_of_a_newer_headgate_is_left_alone(folder: DataFolder) -> None:
    newer = apsw.Connection(str(folder.letters_file))
    newer.pragma("user_version", 99)
    newer.close()
    store = EmbeddedLetterStore(folder)
    with pytest.raises(DataFolderError, match="newer Headgate"):
        await store.counts()
    await store.close()


async def test_what_was_swept_is_given_back_to_the_disk(store: EmbeddedLetterStore) -> None:
    what = [letter(seq, size_bytes=5_000) for seq in range(500)]
    dead = [msgspec.structs.replace(one, state="dead", reason="rejected") for one in what]
    await store.put(dead, HELD, now_ms=1)
    [(before,)] = await store._rows("PRAGMA page_count", ())
    assert await store.sweep(before_ms=2, limit=1_000) == 500
    [(after,)] = await store._rows("PRAGMA page_count", ())
    assert after < before / 2


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@contextlib.asynccontextmanager
async def opened(dsn: str, **bounds: Any) -> AsyncIterator[PostgresLetterStore]:
    store = PostgresLetterStore(dsn, schema=f"letters_{uuid4().hex[:12]}", **bounds)
    try:
        yield store
    finally:
        await store.close()


async def _failing_soon(store: LetterStore) -> None:
    started = time.monotonic()
    calls = (
        store.put([letter(1)], HELD, now_ms=1),
        store.parked("g1", [REF], each=1),
        store.revive([1], now_ms=1),
        store.counts(),
    )
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageFailed] * 4, outcomes
    assert time.monotonic() - started < SOON_S


async def test_no_server_is_a_failure_soon() -> None:
    async with opened(f"postgresql://127.0.0.1:{free_port()}/postgres", timeout_s=0.5) as store:
        await _failing_soon(store)


async def test_a_server_that_pauses_is_a_failure_soon_and_letters_go_on_after_it(
    own_server: Postgres,
) -> None:
    async with opened(own_server.dsn, timeout_s=0.5, commit_timeout_s=0.5) as store:
        await store.put([letter(1)], HELD, now_ms=1)
        with paused(own_server):
            await _failing_soon(store)
        await _put_at_last(store, letter(2))
        assert [one.delivery.seq for one in await store.find(EVERYTHING)] == [1, 2]


async def test_a_server_killed_between_puts_loses_none_that_was_acknowledged(
    own_server: Postgres,
) -> None:
    async with opened(own_server.dsn) as store:
        acknowledged: set[int] = set()
        stopping = asyncio.Event()

        async def lane(first: int) -> None:
            seq = first
            while not stopping.is_set():
                with contextlib.suppress(StorageFailed):
                    await store.put([letter(seq)], HELD, now_ms=1)
                    acknowledged.add(seq)
                    seq += 4

        lanes = [asyncio.ensure_future(lane(first)) for first in range(1, 5)]
        await _grown(acknowledged, 100)
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.restart)
        await _grown(acknowledged, len(acknowledged) + 100)
        stopping.set()
        await asyncio.gather(*lanes)
        found = [one.delivery.seq for one in await store.find(EVERYTHING, limit=1_000_000)]
    assert sorted(found) == sorted(acknowledged)


async def test_what_the_server_cant_store_is_a_failure_like_any_other(
    postgres: Postgres,
) -> None:
    async with opened(postgres.dsn) as store:
        with pytest.raises(StorageFailed):
            await store.put([msgspec.structs.replace(letter(1), attempts=2**40)], HELD, now_ms=1)
        await store.put([letter(1)], HELD, now_ms=1)
        assert await store.count(EVERYTHING) == 1


class Slow:
    """A server that writes or forgets at most so many bytes of letters in a second."""

    BYTES_PER_S = 4_000_000

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema

    async def become(self) -> None:
        function = (
            f"CREATE FUNCTION {self._schema}.take_long() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN PERFORM pg_sleep(octet_length(coalesce(NEW.delivery, OLD.delivery))"
            f" / {self.BYTES_PER_S}.0); RETURN coalesce(NEW, OLD); END $$"
        )
        trigger = (
            f"CREATE TRIGGER slow BEFORE INSERT OR UPDATE OF delivery OR DELETE"
            f" ON {self._schema}.letters"
            f" FOR EACH ROW EXECUTE FUNCTION {self._schema}.take_long()"
        )
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as server:
            await server.execute(function)
            await server.execute(trigger)


LARGE = 30
"""Letters of 100 kB: twice what the slow server changes in the time that a call has."""


async def _large_ones(
    store: LetterStore, *, state: LetterState, reason: LetterReason
) -> list[Letter]:
    for seq in range(1, LARGE + 1):
        new = msgspec.structs.replace(letter(seq, size_bytes=100_000), state=state, reason=reason)
        await store.put([new], HELD, now_ms=1)
    return await store.find(EVERYTHING, limit=LARGE)


async def _at_last(
    change: Callable[[], Awaitable[object]], left: Callable[[], Awaitable[int]]
) -> None:
    """As whoever asks for it does: again after a failure, while something is left."""
    async with asyncio.timeout(SOON_S):
        while await left():
            with contextlib.suppress(StorageFailed):
                await change()


@pytest.mark.parametrize("way", ["bury", "remove", "delete", "sweep", "abandon"])
async def test_what_is_too_much_for_one_call_is_changed_by_and_by(
    postgres: Postgres, way: str
) -> None:
    schema = f"letters_{uuid4().hex[:12]}"
    store = PostgresLetterStore(postgres.dsn, schema=schema, timeout_s=0.4)
    lanes = way in ("bury", "remove")
    state: LetterState = "parked" if lanes else "dead"
    page = await _large_ones(store, state=state, reason="unreachable" if lanes else "rejected")
    await Slow(postgres.dsn, schema).become()
    buried = [msgspec.structs.replace(one, reason="rejected") for one in page]
    ids = [one.id for one in page]
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "bury": lambda: store.bury(buried, HELD, now_ms=2),
        "remove": lambda: store.remove(page, HELD),
        "delete": lambda: store.delete(ids),
        "sweep": lambda: store.sweep(before_ms=2, limit=1_000),
        "abandon": lambda: store.abandon({REF: Fence(2)}, limit=1_000),
    }
    await _at_last(changes[way], lambda: store.count(LetterQuery(state=state)))
    assert await store.count(EVERYTHING) == (LARGE if way == "bury" else 0)
    await store.close()


async def _grown(acknowledged: set[int], size: int) -> None:
    async with asyncio.timeout(60):
        while len(acknowledged) < size:  # noqa: ASYNC110 - the lanes needn't know who watches
            await asyncio.sleep(0.01)
