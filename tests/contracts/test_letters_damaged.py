"""Letters of which the disk has changed something: seen, said, and nobody else's trouble.

A letter says whom it is for and of which record it is in its row, in the store's indexes and in
itself, with a checksum. Whatever of that is changed, the letter is sent to whom it is for, or is
shown as damaged and holds its place; it is never overlooked, nor taken for somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import apsw
import msgspec
import psycopg
import pytest
from structlog.testing import capture_logs

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters import mending
from headgate.adapters.embedded.letters import store as embedded
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.letters import encoded, is_sound
from headgate.adapters.postgres.letters import PostgresLetterStore
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.letters import LetterQuery, LetterReason, LetterState, NewLetter
from headgate.ports.letters import LetterStore
from headgate.telemetry import LogLine
from tests.servers.postgres import Postgres

GATEWAY = "gateway-7"
REFS = [PartitionRef("flights", number) for number in range(3)]
HELD = {ref: Fence(1) for ref in REFS}
EVERYTHING = LetterQuery(state=None)


def delivery(seq: int, partition: int = 0) -> Delivery:
    document = msgspec.Raw(b'{"text":"anything"}')
    return Delivery("flights", partition, seq, f"e{seq}", "key", "", "insert", document, ("s",), 1)


def letter(
    seq: int,
    partition: int = 0,
    *,
    gateway_id: str = GATEWAY,
    state: LetterState = "parked",
    reason: LetterReason = "unreachable",
) -> NewLetter:
    return NewLetter(gateway_id, state, reason, delivery(seq, partition))


PLACES = [(partition, seq) for partition in range(3) for seq in (1, 2, 3)]
PARKED = [letter(seq, partition) for partition, seq in PLACES]


# --- every store ---------------------------------------------------------------------------------


class Damaged(NamedTuple):
    store: LetterStore
    run: Callable[[str], Awaitable[None]]
    """Changes something behind the store's back, with `{letters}` for the table."""


@pytest.fixture(params=["embedded", "postgres"])
async def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damaged]:
    if request.param == "embedded":
        folder = DataFolder.open(tmp_path / "data")

        async def run(statement: str) -> None:
            with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
                connection.execute(statement.format(letters="letters"))

        store: LetterStore = EmbeddedLetterStore(folder)
    else:
        server: Postgres = request.getfixturevalue("postgres")
        schema = f"letters_{uuid4().hex[:12]}"

        async def run(statement: str) -> None:
            async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as one:
                await one.execute(statement.format(letters=f"{schema}.letters").encode())

        store = PostgresLetterStore(server.dsn, schema=schema)
    yield Damaged(store, run)
    await store.close()


OTHER_BITS = {
    "another gateway": "gateway_id = 'gateway-5'",
    "another topic": "topic = 'flightr'",
    "another partition": "partition = 2, seq = 18",
    "another seq": "seq = 18",
    "another reason": "reason = 'unreachabme'",
}


@pytest.mark.parametrize("change", OTHER_BITS.values(), ids=OTHER_BITS)
async def test_a_parked_letter_is_taken_for_nobody_elses(damaged: Damaged, change: str) -> None:
    """A lane removes what nobody wants, so a gateway that was never there must not have it."""
    store = damaged.store
    await store.put(PARKED, HELD, now_ms=1)
    await damaged.run(f"UPDATE {{letters}} SET {change} WHERE partition = 1 AND seq = 2")
    refs = [*REFS, PartitionRef("flightr", 1)]
    behind = await store.claim(dict.fromkeys(refs, Fence(1)))
    found = [one for name in behind for one in await store.parked(name, refs, each=9)]
    assert sum(bool(one.damage) for one in found) == 1
    whole = {(one.delivery.partition, one.delivery.seq) for one in found if not one.damage}
    assert whole == {*PLACES} - {(1, 2)}
    [shown] = [one for one in await store.find(EVERYTHING) if one.damage]
    assert sum(one.count for one in await store.counts()) == len(PARKED)
    assert await store.delete([one.id for one in found]) == [shown.id], "parked ones stay"
    assert len(await store.find(EVERYTHING)) == len(PARKED) - 1


@pytest.mark.parametrize("state", ["parked", "dead"])
async def test_a_letter_from_before_there_were_checksums_is_read_as_it_is(
    damaged: Damaged, state: LetterState
) -> None:
    store = damaged.store
    reason: LetterReason = "unreachable" if state == "parked" else "rejected"
    await store.put([letter(1, state=state, reason=reason)], HELD, now_ms=1)
    content = msgspec.json.encode(delivery(1)).hex()
    value = f"x'{content}'" if isinstance(store, EmbeddedLetterStore) else f"'\\x{content}'"
    await damaged.run(f"UPDATE {{letters}} SET delivery = {value}")
    [one] = await store.find(EVERYTHING)
    assert (one.damage, one.delivery) == ("", delivery(1))
    if state == "parked":
        assert await store.parked(GATEWAY, REFS, each=9) == [one]
        assert await store.claim(HELD) == {GATEWAY: frozenset(REFS[:1])}
    joined = msgspec.structs.replace(delivery(1), subscriptions=("s", "t"))
    await store.put([NewLetter(GATEWAY, state, reason, joined)], HELD, now_ms=2)
    [both] = await store.find(EVERYTHING)
    assert (both.damage, both.delivery.subscriptions) == ("", ("s", "t"))


def test_a_headgate_from_before_passes_over_the_checksum() -> None:
    content = encoded(delivery(1), GATEWAY)
    assert msgspec.json.decode(content, type=Delivery) == delivery(1)
    assert is_sound(content, GATEWAY)
    assert is_sound(content, "gateway-5") is False
    assert is_sound(msgspec.json.encode(delivery(1)), GATEWAY) is None


@pytest.mark.parametrize("length", range(14, 18))
def test_a_header_that_is_named_like_the_checksum_is_none(length: int) -> None:
    headers = msgspec.Raw(b'{"from":"us","checksum":"%s"}' % (b"a" * length))
    with_header = msgspec.structs.replace(delivery(1), headers=headers)
    assert is_sound(msgspec.json.encode(with_header), GATEWAY) is None
    assert is_sound(encoded(with_header, GATEWAY), GATEWAY)


def test_any_bit_of_what_is_written_down_is_noticed() -> None:
    """One in the mark of the checksum itself makes it a letter without one, which it then is."""
    content = encoded(delivery(1), GATEWAY)
    for at, byte in enumerate(content):
        for bit in range(8):
            changed = content[:at] + bytes([byte ^ 1 << bit]) + content[at + 1 :]
            if is_sound(changed, GATEWAY) is not None:
                assert not is_sound(changed, GATEWAY)
                continue
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                assert msgspec.json.decode(changed, type=Delivery) == delivery(1)


# --- the letter file -----------------------------------------------------------------------------


class Flip(NamedTuple):
    where: str
    file: bytes


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "data")


@contextlib.asynccontextmanager
async def closing(store: EmbeddedLetterStore) -> AsyncIterator[EmbeddedLetterStore]:
    try:
        yield store
    finally:
        await store.close()


async def written(folder: DataFolder, letters: Sequence[NewLetter] = PARKED) -> bytes:
    """The file with these letters."""
    async with closing(EmbeddedLetterStore(folder)) as store:
        await store.put(letters, HELD, now_ms=1)
    return folder.letters_file.read_bytes()


def put_in_place(folder: DataFolder, file: bytes) -> None:
    for one in folder.root.glob("letters.db*"):
        one.unlink()
    folder.letters_file.write_bytes(file)


def flips(folder: DataFolder, file: bytes, text: bytes, bit: int) -> Iterator[Flip]:
    """The file with that bit of `text` flipped, at each of the places where it stands."""
    with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
        [(size_bytes,)] = connection.execute("PRAGMA page_size")
        names = dict(connection.execute("SELECT rootpage, name FROM sqlite_master"))
    at = file.find(text)
    while at >= 0:
        changed = file[:at] + bytes([file[at] ^ bit]) + file[at + 1 :]
        yield Flip(names[at // size_bytes + 1], changed)
        at = file.find(text, at + 1)


@pytest.mark.parametrize("bit", [0x01, 0x80], ids=["another text", "no text"])
async def test_wherever_a_gateways_name_is_changed_every_letter_is_found_and_can_be_removed(
    folder: DataFolder, bit: int
) -> None:
    """In a row, or in any index: SQLite would find fewer, or others, and refuse to remove them."""
    file = await written(folder)
    places: set[str] = set()
    for where, changed in flips(folder, file, GATEWAY.encode(), bit):
        places.add(where)
        put_in_place(folder, changed)
        async with closing(EmbeddedLetterStore(folder)) as store:
            assert await store.claim(HELD) == {GATEWAY: frozenset(REFS)}, where
            assert sum(one.count for one in await store.counts()) == len(PARKED)
            found = await store.parked(GATEWAY, REFS, each=9)
            assert [one.delivery for one in found] == [one.delivery for one in PARKED]
            assert not any(one.damage for one in found)
            await store.remove(found, HELD)
            assert await store.find(EVERYTHING) == []
    assert places == {"letters", "parked_once", "by_kind", "by_key"}


async def test_a_letter_whose_place_is_changed_in_the_index_is_found(folder: DataFolder) -> None:
    file = await written(folder, [letter(1_000_001), letter(1_000_002), letter(1_000_003)])
    for where, changed in flips(folder, file, (1_000_002).to_bytes(3), 0x10):
        put_in_place(folder, changed)
        async with closing(EmbeddedLetterStore(folder)) as store:
            await store.claim(HELD)
            found = await store.parked(GATEWAY, REFS, each=9)
            assert [one.delivery.seq for one in found] == [1_000_001, 1_000_002, 1_000_003], where
            await store.remove(found, HELD)


async def test_one_that_is_changed_while_a_lane_reads_holds_no_other_change(
    folder: DataFolder,
) -> None:
    """What shares its transaction would fail with it, again and again."""
    file = await written(folder)
    for _, other in flips(folder, file, GATEWAY.encode(), 0x01):
        put_in_place(folder, other)
        async with closing(EmbeddedLetterStore(folder)) as store:
            ids = [one.id for one in await store.find(EVERYTHING)]
            everything = await store.find(LetterQuery(state=None, ids=tuple(ids)))
            await store.remove(everything, HELD)
            assert await store.count(EVERYTHING) == 0


@pytest.mark.parametrize(
    "change",
    [
        "reason = CAST(x'f5ff' AS TEXT)",
        "delivery = unhex(replace(hex(delivery), hex('flights'), 'E6' || hex('lights')))",
    ],
    ids=["reason", "topic"],
)
async def test_one_of_which_something_is_no_text_holds_nothing_that_is_written(
    folder: DataFolder, change: str
) -> None:
    """A put that failed would hold all that waits to be written for its gateway."""
    await written(folder)
    with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
        connection.execute(f"UPDATE letters SET {change} WHERE seq = 2")
    async with closing(EmbeddedLetterStore(folder)) as store:
        await store.put(PARKED, HELD, now_ms=2)
        found = await store.parked(GATEWAY, REFS, each=9)
        assert [one.delivery for one in found] == [one.delivery for one in PARKED]
        assert not any(one.damage for one in found)


async def test_where_nothing_says_whose_a_letter_is_it_is_nobodys(folder: DataFolder) -> None:
    """One from before there were checksums, of which the row and the index say two gateways."""
    await written(folder)
    content = msgspec.json.encode(delivery(2, 1))
    with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
        connection.execute(
            "UPDATE letters SET delivery = ? WHERE partition = 1 AND seq = 2", (content,)
        )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    file = folder.letters_file.read_bytes()
    stands_still = 0
    for where, changed in flips(folder, file, GATEWAY.encode(), 0x01):
        put_in_place(folder, changed)
        async with closing(EmbeddedLetterStore(folder)) as store:
            behind = await store.claim(HELD)
            found = [one for name in behind for one in await store.parked(name, REFS, each=9)]
            assert len(found) == len(PARKED), where
            assert all(one.damage or one.gateway_id == GATEWAY for one in found)
            broken = [one.id for one in found if one.damage]
            stands_still += len(broken)
            assert await store.delete(broken) == broken
            assert await store.count(EVERYTHING) == len(PARKED) - len(broken)
    assert stands_still == 2, "once by its row, once by its index"


async def test_several_lanes_that_begin_at_once_have_it_mended_once(folder: DataFolder) -> None:
    file = await written(folder)
    [(_, changed), *_] = [
        one for one in flips(folder, file, GATEWAY.encode(), 0x01) if one.where == "parked_once"
    ]
    put_in_place(folder, changed)
    stores = [EmbeddedLetterStore(folder) for _ in range(4)]
    with capture_logs() as lines:
        behind = await asyncio.gather(*(store.claim(HELD) for store in stores))
    assert behind == [{GATEWAY: frozenset(REFS)}] * 4
    assert [one["event"] for one in lines] == [LogLine.LETTERS_MENDED]
    for store in stores:
        await store.close()


async def test_what_the_disk_cant_tell_any_more_is_found_without_the_index(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be so damaged that its indexes can't be made anew."""
    file = await written(folder)

    def fails(_: apsw.Connection) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    monkeypatch.setattr(embedded, "mend", fails)
    for where, changed in flips(folder, file, GATEWAY.encode(), 0x01):
        put_in_place(folder, changed)
        async with closing(EmbeddedLetterStore(folder)) as store:
            with capture_logs() as lines:
                behind = await store.claim(HELD)
            assert [one["event"] for one in lines] == [LogLine.LETTERS_FAILED]
            assert behind[GATEWAY] == frozenset(REFS)
            found = await store.parked(GATEWAY, REFS, each=9)
            assert [one.delivery for one in found] == [one.delivery for one in PARKED], where


async def test_a_lane_begins_although_its_letters_take_too_long_to_be_compared(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "COMPARED_IN_S", -1.0)
    monkeypatch.setattr(mending, "STEPS", 1)
    await written(folder)
    async with closing(EmbeddedLetterStore(folder)) as store:
        assert await store.claim(HELD) == {GATEWAY: frozenset(REFS)}
        assert len(await store.parked(GATEWAY, REFS, each=9)) == len(PARKED)


async def test_targets_are_claimed_without_a_look_at_all_letters(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for the looks of all the others, and longer than a call may take."""
    group = Group(group_id("flights", "billing"), "flights", "billing", 16)
    looks: list[apsw.Connection] = []
    monkeypatch.setattr(embedded, "contradicts_itself", looks.append)
    async with closing(EmbeddedLetterStore(folder)) as store:
        for target in range(group.targets):
            assert await store.claim({group.position_ref(target, 0): Fence(1)}) == {}
        assert not looks
        await store.claim(HELD)
        assert len(looks) == 1


async def test_what_new_indexes_would_not_mend_has_none_made(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every lane that begins would make them, and nobody could write meanwhile."""
    file = await written(folder)
    kinds = bytes([8, 8, 13, 9])  # of `redelivery`, `attempts`, `error` and `at_ms` in a row
    assert file.count(kinds) == len(PARKED)
    put_in_place(folder, file.replace(kinds, bytes([8, 0, 13, 9]), 1))
    with contextlib.closing(apsw.Connection(str(folder.letters_file))) as connection:
        said = connection.execute("PRAGMA integrity_check(letters)").fetchall()
    assert said == [("NULL value in letters.attempts",)]
    mended: list[apsw.Connection] = []
    monkeypatch.setattr(embedded, "mend", mended.append)
    async with closing(EmbeddedLetterStore(folder)) as store:
        assert await store.claim(HELD) == {GATEWAY: frozenset(REFS)}
        found = await store.parked(GATEWAY, REFS, each=9)
        assert (len(found), sum(bool(one.damage) for one in found)) == (len(PARKED), 1)
        assert not mended


async def test_a_file_that_takes_too_long_to_be_compared_is_mended_where_sqlite_says_so(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nothing could be changed that shares a transaction with such a letter."""
    file = await written(folder)
    monkeypatch.setattr(mending, "COMPARED_IN_S", -1.0)
    monkeypatch.setattr(mending, "STEPS", 1)
    for where, changed in flips(folder, file, GATEWAY.encode(), 0x01):
        put_in_place(folder, changed)
        async with closing(EmbeddedLetterStore(folder)) as store:
            await store.claim(HELD)
            await store.remove(await store.find(EVERYTHING), HELD)
            assert await store.find(EVERYTHING) == [], where
