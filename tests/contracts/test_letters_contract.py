"""What every letter store promises: ports/letters.py."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.model.letters import (
    Letter,
    LetterCount,
    LetterQuery,
    LetterReason,
    LetterState,
    NewLetter,
)
from headgate.ports.letters import LetterStore
from tests.contracts.stores import Opened

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)
FURTHER = PartitionRef("alerts", 3)
EVERYTHING = LetterQuery(state=None)
REASONS: tuple[LetterReason, ...] = get_args(LetterReason)
ROOT = Path(__file__).parents[2]


def delivery(
    seq: int, ref: PartitionRef = REF, *, key: str | None = "4ca123", redelivery: bool = False
) -> Delivery:
    return Delivery(
        topic=ref.topic,
        partition=ref.partition,
        seq=seq,
        event_id=f"{ref}-{seq}",
        key=key,
        collection="positions",
        op="update",
        document=msgspec.Raw(b'{"alt":1.50,"note":"caf\\u00e9"}'),
        subscriptions=("s1", "s2"),
        epoch=7,
        time_ms=1_000 + seq,
        since=(0, 3),
        left=("s2",),
        redelivery=redelivery,
    )


def parked(
    seq: int, ref: PartitionRef = REF, *, gateway: str = "g1", redelivery: bool = False
) -> NewLetter:
    return NewLetter(gateway, "parked", "unreachable", delivery(seq, ref, redelivery=redelivery))


def dead(
    seq: int, ref: PartitionRef = REF, *, gateway: str = "g1", reason: LetterReason = "rejected"
) -> NewLetter:
    return NewLetter(gateway, "dead", reason, delivery(seq, ref), attempts=3, error="400: no")


async def ids_of(store: LetterStore, query: LetterQuery = EVERYTHING) -> list[int]:
    return [letter.id for letter in await store.find(query, limit=1_000)]


def seqs(letters: Iterable[Letter]) -> list[int]:
    return [letter.delivery.seq for letter in letters]


async def test_a_letter_comes_back_as_it_was_written(letters: Opened) -> None:
    written = [
        NewLetter("g1", "dead", "rejected", delivery(1), attempts=3, error="400: «no»\nagain"),
        NewLetter("g1", "parked", "too_old", delivery(2, key=None), error="zero \0 here"),
        NewLetter("g2", "parked", "unreachable", delivery(3, key="a\0b", redelivery=True)),
        NewLetter("g2", "dead", "shed", delivery(4, key="k" * 20_000)),
    ]
    first = letters.letters()
    await first.put(written, now_ms=5_000)
    await first.close()
    found = await letters.letters().find(EVERYTHING)
    by_seq = {letter.delivery.seq: letter for letter in found}
    for new in written:
        one = by_seq[new.delivery.seq]
        assert bytes(one.delivery.document) == bytes(new.delivery.document)
        assert _without_document(one.delivery) == _without_document(new.delivery)
        assert (one.gateway_id, one.state, one.reason) == (new.gateway_id, new.state, new.reason)
        assert (one.attempts, one.at_ms) == (new.attempts, 5_000)
        assert one.error == new.error.replace("\0", "?")


def _without_document(one: Delivery) -> Delivery:
    return msgspec.structs.replace(one, document=msgspec.Raw(b""))


async def test_a_key_of_any_length_is_found_again(letters: Opened) -> None:
    store = letters.letters()
    long = random.Random(1).randbytes(20_000).hex()  # what an index could make small is no test
    for number, key in enumerate([long, long + "0", "", "a\0b"], 1):
        letter = NewLetter("g1", "dead", "rejected", delivery(number, key=key))
        await store.put([letter], now_ms=1)
        assert seqs(await store.find(LetterQuery(key=key))) == [number]


@pytest.mark.parametrize("make", [parked, dead])
async def test_a_letter_is_written_once(letters: Opened, make: Callable[[int], NewLetter]) -> None:
    one, two = letters.letters(), letters.letters()
    await one.put([make(2), make(1), make(2)], now_ms=10)
    await two.put([make(3), make(2), make(1)], now_ms=20)
    found = await one.find(EVERYTHING)
    assert sorted((letter.delivery.seq, letter.at_ms) for letter in found) == [
        (1, 10),
        (2, 10),
        (3, 20),
    ]


async def test_gateway_partition_seq_and_state_tell_letters_apart(letters: Opened) -> None:
    store = letters.letters()
    different = [parked(1), dead(1), parked(2), parked(1, OTHER), parked(1, gateway="g2")]
    await store.put(different, now_ms=1)
    await store.put(different, now_ms=2)
    assert await store.count(EVERYTHING) == len(different)


async def test_a_parked_redelivery_doesnt_stand_for_the_letter_in_the_order(
    letters: Opened,
) -> None:
    """Otherwise what a lane parks would leave the order, and newer ones would pass it."""
    store = letters.letters()
    await store.put([dead(1)], now_ms=1)
    await store.revive(await ids_of(store), now_ms=2)
    await store.put([parked(1)], now_ms=3)
    assert [letter.delivery.redelivery for letter in await store.parked("g1", [REF], limit=9)] == [
        True,
        False,
    ]
    assert await store.behind([REF]) == {"g1": frozenset({REF})}


async def test_parked_letters_come_in_order_redeliveries_first(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(5), parked(2, FURTHER), parked(9, OTHER)], now_ms=1)
    await store.put([parked(3), parked(1, OTHER), dead(4), parked(1, gateway="g2")], now_ms=2)
    await store.revive(await ids_of(store, LetterQuery()), now_ms=3)
    await store.put([dead(6)], now_ms=4)

    async def found(*refs: PartitionRef, limit: int = 100) -> list[tuple[str, int, bool]]:
        letters = await store.parked("g1", refs, limit=limit)
        return [(str(_ref(one)), one.delivery.seq, one.delivery.redelivery) for one in letters]

    whole = [
        ("flights:0", 4, True),
        ("alerts:3", 2, False),
        ("flights:0", 3, False),
        ("flights:0", 5, False),
        ("flights:1", 1, False),
        ("flights:1", 9, False),
    ]
    assert await found(OTHER, REF, FURTHER, REF) == whole
    for limit in range(7):
        assert await found(OTHER, REF, FURTHER, limit=limit) == whole[:limit]
    assert await found(OTHER) == whole[4:]
    assert await found() == []


async def test_behind_names_partitions_per_gateway_and_no_redeliveries(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(n, gateway=g) for n in (1, 2) for g in ("g1", "g2", "g3")], now_ms=1)
    await store.put([parked(1, OTHER, gateway="g2"), parked(1, FURTHER), dead(7, OTHER)], now_ms=1)
    await store.revive(await ids_of(store, LetterQuery()), now_ms=2)
    assert await store.behind([REF, OTHER, PartitionRef("flights", 2)]) == {
        "g1": frozenset({REF}),
        "g2": frozenset({REF, OTHER}),
        "g3": frozenset({REF}),
    }
    await store.remove(await ids_of(store, LetterQuery(state="parked", gateway_id="g1")))
    assert set(await store.behind([REF, OTHER, FURTHER])) == {"g2", "g3"}
    assert await store.behind([]) == {}


async def test_revived_names_the_gateways_that_have_redeliveries(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2), dead(3, OTHER, gateway="g2")], now_ms=1)
    assert await store.revived([REF, OTHER]) == frozenset()
    await store.revive(await ids_of(store, LetterQuery()), now_ms=2)
    assert await store.revived([REF, OTHER, FURTHER]) == frozenset({"g1", "g2"})
    assert await store.revived([OTHER]) == frozenset({"g2"})
    assert await store.revived([]) == frozenset()


async def test_bury_makes_parked_letters_dead_and_leaves_dead_ones_alone(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2)], now_ms=1)
    ids = await ids_of(store)
    await store.bury([*ids, 999], "rejected", attempts=5, error="400 \0", now_ms=9)
    changed, same = sorted(await store.find(LetterQuery()), key=lambda one: one.delivery.seq)
    assert (changed.attempts, changed.error, changed.at_ms) == (5, "400 ?", 9)
    assert (same.attempts, same.error, same.at_ms) == (3, "400: no", 1)
    assert await store.behind([REF]) == {}


async def test_of_two_that_are_buried_for_one_record_the_later_one_stays(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(1)], now_ms=1)
    await store.revive(await ids_of(store), now_ms=2)
    await store.put([dead(1), parked(1)], now_ms=3)
    waiting = await ids_of(store, LetterQuery(state="parked"))
    assert len(waiting) == 2
    await store.bury(waiting, "rejected", attempts=6, error="", now_ms=4)
    [left] = await store.find(EVERYTHING)
    assert (left.id, left.state, left.attempts) == (max(waiting), "dead", 6)


async def test_revive_twice_does_it_once(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(1), dead(2), parked(3)], now_ms=1)
    ids = await ids_of(store)
    buried = await ids_of(store, LetterQuery())
    assert await store.revive(ids, now_ms=5) == buried
    assert await store.revive(ids, now_ms=6) == []
    again = await store.parked("g1", [REF], limit=9)
    assert [(one.delivery.seq, one.delivery.redelivery, one.at_ms) for one in again] == [
        (1, True, 5),
        (2, True, 5),
        (3, False, 1),
    ]


async def test_a_record_that_died_again_is_revived_again(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(1)], now_ms=1)
    await store.revive(await ids_of(store), now_ms=2)
    await store.put([dead(1)], now_ms=3)
    [second] = await ids_of(store, LetterQuery())
    assert await store.revive([second], now_ms=4) == [second]
    [left] = await store.find(EVERYTHING)
    assert (left.id, left.state, left.delivery.redelivery) == (second, "parked", True)


async def test_only_dead_letters_are_deleted_and_only_parked_ones_removed(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2), dead(3)], now_ms=1)
    ids = await ids_of(store)
    kept = await ids_of(store, LetterQuery(state="parked"))
    gone = await ids_of(store, LetterQuery())
    assert await store.delete([*ids, 12_345]) == gone
    assert await store.delete(ids) == []
    assert await ids_of(store) == kept
    await store.put([dead(4)], now_ms=2)
    await store.remove(await ids_of(store))
    assert seqs(await store.find(EVERYTHING)) == [4]
    await store.remove([])


async def test_ids_are_never_given_out_twice(letters: Opened) -> None:
    store = letters.letters()
    seen: list[int] = []
    for _ in range(3):
        await store.put([dead(1), dead(2)], now_ms=1)
        seen += await ids_of(store)
        await store.delete(seen)
    await store.close()
    store = letters.letters()
    await store.put([dead(1)], now_ms=1)
    seen += await ids_of(store)
    assert seen == sorted(set(seen))


async def test_sweep_forgets_old_dead_letters_up_to_its_limit(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(n) for n in range(1, 2_401)], now_ms=100)
    await store.put([dead(n, OTHER) for n in range(1, 4)], now_ms=200)
    await store.put([parked(n) for n in range(1, 4)], now_ms=1)
    assert await store.sweep(before_ms=100, limit=10) == 0
    assert await store.sweep(before_ms=101, limit=1_300) == 1_300
    assert await store.sweep(before_ms=101, limit=5_000) == 1_100
    assert await store.sweep(before_ms=101, limit=5_000) == 0
    assert await store.count(EVERYTHING) == 6
    assert await store.sweep(before_ms=10_000, limit=2) == 2
    assert Counter(one.state for one in await store.find(EVERYTHING)) == {"dead": 1, "parked": 3}


async def test_bulk_changes_may_be_larger_than_a_chunk(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(n) for n in range(1, 2_502)], now_ms=1)
    ids = await ids_of(store, LetterQuery())
    while len(page := await store.find(LetterQuery(), after_id=ids[-1], limit=1_000)):
        ids += [letter.id for letter in page]
    assert len(ids) == 2_501
    assert await store.revive(ids, now_ms=2) == ids
    await store.bury(ids, "rejected", attempts=9, error="", now_ms=3)
    assert await store.count(LetterQuery()) == 2_501
    assert await store.delete(ids) == ids


# --- a naive list as the oracle ------------------------------------------------------------------


@dataclass
class NaiveLetters:
    """The letters as a list, and the port's sentences applied to it one by one."""

    letters: list[Letter] = field(default_factory=list)

    def put(self, new: NewLetter, id_: int, now_ms: int) -> None:
        if not any(_identity(one) == _identity(new) for one in self.letters):
            fields = (new.gateway_id, new.state, new.reason, new.delivery, new.attempts, new.error)
            self.letters.append(Letter(id_, *fields, now_ms))

    def find(self, query: LetterQuery) -> list[Letter]:
        chosen = [one for one in self.letters if _matches(query, one)]
        return sorted(chosen, key=lambda one: one.id)

    def counts(self) -> list[LetterCount]:
        kinds: dict[tuple[LetterState, str, str, LetterReason], list[int]] = {}
        for one in self.letters:
            kind = (one.state, one.gateway_id, one.delivery.topic, one.reason)
            kinds.setdefault(kind, []).append(one.at_ms)
        return [LetterCount(*kind, len(at), min(at)) for kind, at in sorted(kinds.items())]


def _identity(one: Letter | NewLetter) -> tuple[object, ...]:
    what = one.delivery
    outside = one.state == "parked" and what.redelivery
    return (one.gateway_id, what.topic, what.partition, what.seq, one.state, outside)


def _matches(query: LetterQuery, one: Letter) -> bool:
    what = one.delivery
    return all(
        (
            query.state is None or one.state == query.state,
            not query.ids or one.id in query.ids,
            query.gateway_id is None or one.gateway_id == query.gateway_id,
            query.topic is None or what.topic == query.topic,
            query.partition is None or what.partition == query.partition,
            query.key is None or what.key == query.key,
            query.reason is None or one.reason == query.reason,
            query.before_ms is None or one.at_ms < query.before_ms,
            query.after_ms is None or one.at_ms > query.after_ms,
        )
    )


def _any_letter(chance: random.Random) -> NewLetter:
    ref = chance.choice([REF, OTHER, FURTHER])
    what = delivery(chance.randint(1, 12), ref, key=chance.choice([None, "a", "b", ""]))
    state: LetterState = chance.choice(["parked", "dead"])
    return NewLetter(chance.choice(["g1", "g2"]), state, chance.choice(REASONS), what)


def _any_query(chance: random.Random, ids: Sequence[int]) -> LetterQuery:
    def maybe(value: object) -> object:
        return value if chance.random() < 0.3 else None

    wanted = {
        "state": chance.choice(["parked", "dead", None]),
        "ids": tuple(chance.sample(ids, min(len(ids), 20))) if chance.random() < 0.2 else (),
        "gateway_id": maybe(chance.choice(["g1", "g2", "g3"])),
        "topic": maybe(chance.choice(["flights", "alerts", "none"])),
        "partition": maybe(chance.choice([0, 1, 3])),
        "key": maybe(chance.choice(["a", "b", "", "c"])),
        "reason": maybe(chance.choice(REASONS)),
        "before_ms": maybe(chance.randint(0, 30)),
        "after_ms": maybe(chance.randint(0, 30)),
    }
    return msgspec.convert(wanted, LetterQuery)


@pytest.mark.parametrize("seed", range(3))
async def test_find_and_count_choose_as_a_plain_list_would(letters: Opened, seed: int) -> None:
    chance = random.Random(seed)
    store, naive = letters.letters(), NaiveLetters()
    for now_ms in range(30):
        new = _any_letter(chance)
        await store.put([new], now_ms=now_ms)
        newest = await store.find(EVERYTHING, limit=1_000)
        naive.put(new, newest[-1].id, now_ms)
        if chance.random() < 0.3:
            ids = chance.sample([one.id for one in newest], 1)
            deleted = [one.id for one in naive.letters if one.id in ids and one.state == "dead"]
            assert await store.delete(ids) == deleted
            naive.letters = [one for one in naive.letters if one.id not in deleted]
    ids = [one.id for one in naive.letters]
    assert await store.counts() == naive.counts()
    for _ in range(60):
        query = _any_query(chance, ids)
        expected = [one.id for one in naive.find(query)]
        assert await ids_of(store, query) == expected, query
        assert await store.count(query) == len(expected)
        after_id, limit = chance.choice([0, *ids]), chance.randint(0, 5)
        page = await store.find(query, after_id=after_id, limit=limit)
        assert [one.id for one in page] == [id_ for id_ in expected if id_ > after_id][:limit]


# --- many at once --------------------------------------------------------------------------------


async def test_callers_at_once_write_everything_once(letters: Opened) -> None:
    """Two stores write the same letters at the same time, in opposite orders."""
    stores = [letters.letters(), letters.letters()]
    for round_number in range(5):
        first = round_number * 100 + 1
        everything = [
            make(seq, ref)
            for seq in range(first, first + 100)
            for ref in (REF, OTHER)
            for make in MAKERS
        ]
        parts = [everything[:250], everything[150:], everything[::3]]
        await asyncio.gather(
            *(stores[0].put(part, now_ms=1) for part in parts),
            *(stores[1].put(part[::-1], now_ms=2) for part in parts[::-1]),
        )
    assert await stores[0].count(EVERYTHING) == 5 * 400


MAKERS = (parked, dead)

WRITER = """
import asyncio, sys
from itertools import count
from tests.contracts.stores import LETTERS
from tests.contracts.test_letters_contract import OTHER, REF, dead, parked

async def main(adapter, location, name, most):
    store = LETTERS[adapter](location)
    numbers = iter(range(1, most + 1)) if most else count(1)

    async def caller():
        for seq in numbers:
            await store.put([parked(seq, gateway=name), dead(seq, OTHER, gateway=name)], now_ms=1)
            sys.stdout.write(f"{seq}\\n")
            sys.stdout.flush()

    await asyncio.gather(*(caller() for _ in range(4)))
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


async def _writer(letters: Opened, name: str, most: int = 0) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", WRITER, letters.adapter, letters.location, name, str(most)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_processes_that_start_together_share_one_store(letters: Opened) -> None:
    writers = [await _writer(letters, name, 50) for name in ("g1", "g2", "g3")]
    for writer in writers:
        await writer.communicate()
        assert writer.returncode == 0
    store = letters.letters()
    assert await store.count(EVERYTHING) == 3 * 50 * 2
    assert seqs(await store.parked("g2", [REF], limit=100)) == list(range(1, 51))


async def test_what_put_returned_for_is_there_after_its_process_was_killed(
    letters: Opened,
) -> None:
    writer = await _writer(letters, "g1")
    assert writer.stdout is not None
    acknowledged = [int(await writer.stdout.readline()) for _ in range(100)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = await writer.communicate()
    acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
    store = letters.letters()
    found = await store.find(EVERYTHING, limit=1_000_000)
    states = {state: {one.delivery.seq for one in found if one.state == state} for state in STATES}
    assert set(acknowledged) <= states["parked"]
    assert states["parked"] == states["dead"], "half of a put"


STATES: tuple[LetterState, ...] = get_args(LetterState)


def _ref(letter: Letter) -> PartitionRef:
    return PartitionRef(letter.delivery.topic, letter.delivery.partition)
