"""What every letter store promises: ports/letters.py."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import msgspec
import pytest

from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.errors import Fenced
from headgate.lane.delivery.pipelines import BEHIND_ALL
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import Group, group_of
from headgate.model.letters import (
    Letter,
    LetterCount,
    LetterQuery,
    LetterReason,
    LetterState,
    NewLetter,
)
from headgate.ports.letters import NO_SEQS, LetterStore
from tests.contracts.stores import LETTERS, Opened, durable
from tests.forks import AsyncFork, forked

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)
FURTHER = PartitionRef("alerts", 3)
EVERYTHING = LetterQuery(state=None)
REASONS: tuple[LetterReason, ...] = get_args(LetterReason)
HELD = {ref: Fence(7, 3, 1) for ref in (REF, OTHER, FURTHER)}
"""Under what a lane has its partitions."""
RADAR = Group("@group/flights/radar", "flights", "radar", 4)
RADARS = Group("@group/radar/radars", "radar", "radars", 4)
TARGETS = [RADAR.target_name(0), RADAR.target_name(3), RADARS.target_name(0)]
OWNED = {PartitionRef(name, ref.partition): Fence(5) for name in TARGETS for ref in HELD}
"""Under what gateways have the positions of targets."""


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
        headers=msgspec.Raw(b'{"trace":"7f"}'),
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
    await first.put(written, HELD, now_ms=5_000)
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
        await store.put([letter], HELD, now_ms=1)
        assert seqs(await store.find(LetterQuery(key=key))) == [number]


@pytest.mark.parametrize("make", [parked, dead])
async def test_a_letter_is_written_once(letters: Opened, make: Callable[[int], NewLetter]) -> None:
    one, two = letters.letters(), letters.letters()
    await one.put([make(2), make(1), make(2)], HELD, now_ms=10)
    await two.put([make(3), make(2), make(1)], HELD, now_ms=20)
    found = await one.find(EVERYTHING)
    assert sorted((letter.delivery.seq, letter.at_ms) for letter in found) == [
        (1, 10),
        (2, 10),
        (3, 20),
    ]


async def test_what_tells_letters_apart(letters: Opened) -> None:
    """Gateway, partition, seq and state, and of dead ones the reason."""
    store = letters.letters()
    different = [parked(1), dead(1), parked(2), parked(1, OTHER), parked(1, gateway="g2")]
    different += [dead(1, reason="shed"), dead(1, gateway="g2")]
    await store.put(different, HELD, now_ms=1)
    await store.put(different, HELD, now_ms=2)
    assert await store.count(EVERYTHING) == len(different)


def for_whom(new: NewLetter, *names: str, left: tuple[str, ...] = ()) -> NewLetter:
    since = tuple(range(len(names)))
    what = msgspec.structs.replace(new.delivery, subscriptions=names, since=since, left=left)
    return msgspec.structs.replace(new, delivery=what)


@pytest.mark.parametrize("make", [parked, dead])
async def test_a_second_letter_for_others_is_joined_to_the_first(
    letters: Opened, make: Callable[[int], NewLetter]
) -> None:
    """A lane that took over may know of more who want the record."""
    store = letters.letters()
    await store.put([for_whom(make(1), "x", "y", left=("y",))], HELD, now_ms=1)
    await store.put([for_whom(make(1), "y", "s", left=("s",))], HELD, now_ms=2)
    [one] = await store.find(EVERYTHING)
    assert one.at_ms == 2, "a part of it was written just now"
    assert (one.delivery.subscriptions, one.delivery.since) == (("x", "y", "s"), (0, 1, 1))
    assert one.delivery.left == ("s",), "the newer word counts"
    await store.put([for_whom(make(2), "a"), for_whom(make(2), "b")], HELD, now_ms=3)
    both = await store.find(LetterQuery(state=None), after_id=one.id)
    assert [letter.delivery.subscriptions for letter in both] == [("a", "b")]


async def test_what_was_joined_meanwhile_is_neither_removed_nor_buried(letters: Opened) -> None:
    """It was sent for fewer than it is for now."""
    store = letters.letters()
    await store.put([for_whom(parked(1), "x"), for_whom(parked(2), "x")], HELD, now_ms=1)
    read = await store.parked("g1", [REF], each=9)
    await store.put([for_whom(parked(1), "s"), for_whom(parked(2), "s")], HELD, now_ms=2)
    await store.remove(read[:1], HELD)
    await store.bury(read[1:], HELD, now_ms=3)
    left = await store.parked("g1", [REF], each=9)
    assert [one.delivery.subscriptions for one in left] == [("x", "s"), ("x", "s")]


async def test_what_was_joined_meanwhile_is_neither_deleted_nor_revived(letters: Opened) -> None:
    """An operator was shown a letter for fewer than it is for now."""
    store = letters.letters()
    await store.put([for_whom(dead(1), "x"), for_whom(dead(2), "x")], HELD, now_ms=1)
    seen = await ids_of(store, LetterQuery(before_ms=2))
    await store.revive(seen[1:], now_ms=2)
    again = await store.revived([REF], after_id=0, limit=9)
    await store.bury(again, HELD, now_ms=3)
    assert await ids_of(store, LetterQuery()) == seen, "whoever waits for it finds it"
    await store.put([for_whom(dead(1), "s"), for_whom(dead(2), "s")], HELD, now_ms=4)
    assert await store.delete(seen) == []
    assert await store.revive(seen, now_ms=5) == []
    left = await store.find(LetterQuery())
    assert [one.delivery.subscriptions for one in left] == [("x", "s"), ("x", "s")]
    assert not any(one.delivery.redelivery for one in left)


async def test_letters_that_come_while_others_go_are_written(letters: Opened) -> None:
    """A lane parks what it parks again while it removes what it delivered."""
    store = letters.letters()
    for number in range(30):
        new = [for_whom(parked(seq), f"s{number}") for seq in range(1, 11)]
        old = await store.parked("g1", [REF], each=99)
        await asyncio.gather(store.put(new, HELD, now_ms=number), store.remove(old, HELD))
        found = await store.parked("g1", [REF], each=99)
        assert seqs(found) == list(range(1, 11))
        assert all(f"s{number}" in one.delivery.subscriptions for one in found)


async def test_claims_at_once_wait_for_each_other_and_not_in_a_circle(letters: Opened) -> None:
    stores = [letters.letters(), letters.letters()]
    for attempt in range(1, 20, 2):
        fences = [{ref: Fence(8, 0, attempt + at) for ref in HELD} for at in range(2)]
        outcomes = await asyncio.gather(
            *(store.claim(held) for store, held in zip(stores, fences, strict=True)),
            return_exceptions=True,
        )
        assert all(isinstance(one, dict | Fenced) for one in outcomes), outcomes


async def test_a_redelivery_in_its_order_stays_in_it(letters: Opened) -> None:
    """A partition that was reset brings its records again: parked, they hold what is newer."""
    store = letters.letters()
    await store.put([parked(2, redelivery=True), parked(1, redelivery=True)], HELD, now_ms=1)
    await store.put([parked(1)], HELD, now_ms=2)
    found = await store.parked("g1", [REF], each=9)
    assert [(one.delivery.seq, one.delivery.redelivery) for one in found] == [(1, True), (2, True)]
    assert await store.claim(HELD) == {"g1": frozenset({REF})}
    assert await store.revived([REF], after_id=0, limit=9) == []


async def test_what_is_revived_is_outside_the_order(letters: Opened) -> None:
    """Otherwise what a lane parks would leave the order, and newer ones would pass it."""
    store = letters.letters()
    await store.put([dead(1), dead(1, reason="shed")], HELD, now_ms=1)
    ids = await ids_of(store)
    await store.revive(ids, now_ms=2)
    await store.put([parked(1)], HELD, now_ms=3)
    [waits] = await store.parked("g1", [REF], each=9)
    assert not waits.delivery.redelivery
    again = await store.revived([REF], after_id=0, limit=9)
    assert [(one.id, one.delivery.redelivery) for one in again] == [(id_, True) for id_ in ids]
    assert await store.claim(HELD) == {"g1": frozenset({REF})}


async def test_parked_letters_come_in_order_some_of_every_partition(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(5), parked(2, FURTHER), parked(9, OTHER)], HELD, now_ms=1)
    await store.put([parked(3), parked(1, OTHER), dead(4), parked(1, gateway="g2")], HELD, now_ms=2)
    await store.revive(await ids_of(store, LetterQuery()), now_ms=3)

    async def found(
        *refs: PartitionRef, each: int = 100, after_seqs: Mapping[PartitionRef, int] = NO_SEQS
    ) -> list[tuple[str, int]]:
        page = await store.parked("g1", refs, each=each, after_seqs=after_seqs)
        return [(str(one.ref), one.delivery.seq) for one in page]

    whole = [
        ("alerts:3", 2),
        ("flights:0", 3),
        ("flights:0", 5),
        ("flights:1", 1),
        ("flights:1", 9),
    ]
    assert await found(OTHER, REF, FURTHER, REF) == whole
    assert await found(OTHER, REF, FURTHER, each=1) == [whole[0], whole[1], whole[3]]
    assert await found(OTHER) == whole[3:]
    assert await found() == []
    after_seqs = {REF: 3, OTHER: 9}
    assert await found(OTHER, REF, FURTHER, after_seqs=after_seqs) == [whole[0], whole[2]]
    assert await found(OTHER, each=1, after_seqs={OTHER: 1}) == whole[4:]


async def test_revived_letters_come_by_id_page_by_page(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(3), dead(1, OTHER, gateway="g2"), dead(2), parked(4)], HELD, now_ms=1)
    await store.put([dead(9, FURTHER)], HELD, now_ms=1)
    ids = await ids_of(store, LetterQuery())
    assert await store.revived([REF, OTHER, FURTHER], after_id=0, limit=9) == []
    await store.revive(ids, now_ms=2)

    async def found(*refs: PartitionRef, after_id: int = 0, limit: int = 9) -> list[int]:
        page = await store.revived(refs, after_id=after_id, limit=limit)
        return [letter.id for letter in page]

    assert await found(FURTHER, OTHER, REF) == ids
    assert await found(FURTHER, OTHER, REF, limit=2) == ids[:2]
    assert await found(FURTHER, OTHER, REF, after_id=ids[1], limit=9) == ids[2:]
    assert await found(OTHER) == await ids_of(store, LetterQuery(state="parked", gateway_id="g2"))
    assert await found(FURTHER, OTHER, REF, after_id=BEHIND_ALL) == []
    assert await found() == []


async def test_a_claim_names_partitions_per_gateway_and_nothing_that_is_revived(
    letters: Opened,
) -> None:
    store = letters.letters()
    some = [parked(n, gateway=g) for n in (1, 2) for g in ("g1", "g2", "g3")]
    await store.put(some, HELD, now_ms=1)
    more = [parked(1, OTHER, gateway="g2"), parked(1, FURTHER), dead(7, OTHER)]
    await store.put(more, HELD, now_ms=1)
    await store.revive(await ids_of(store, LetterQuery()), now_ms=2)
    fence = HELD[REF]
    assert await store.claim({REF: fence, OTHER: fence, PartitionRef("flights", 2): fence}) == {
        "g1": frozenset({REF}),
        "g2": frozenset({REF, OTHER}),
        "g3": frozenset({REF}),
    }
    mine = await store.find(LetterQuery(state="parked", gateway_id="g1"))
    await store.remove([one for one in mine if not one.delivery.redelivery], HELD)
    assert set(await store.claim(HELD)) == {"g2", "g3"}
    assert await store.claim({}) == {}


# --- fences --------------------------------------------------------------------------------------

NEWER = [Fence(8, 0, 0), Fence(7, 4, 0), Fence(7, 3, 2)]
"""Another epoch, the next window, another attempt."""


@pytest.mark.parametrize("newer", NEWER, ids=["epoch", "window", "attempt"])
async def test_whoever_was_overtaken_changes_nothing(letters: Opened, newer: Fence) -> None:
    former, successor = letters.letters(), letters.letters()
    await former.put([parked(1), parked(1, OTHER)], HELD, now_ms=1)
    known = await former.parked("g1", [REF, OTHER], each=9)
    assert await successor.claim({REF: newer}) == {"g1": frozenset({REF})}
    for change in (
        lambda: former.claim(HELD),
        lambda: former.put([parked(2, OTHER), for_whom(parked(1), "z")], HELD, now_ms=2),
        lambda: former.put([dead(3)], HELD, now_ms=2),
        lambda: former.remove(known, HELD),
        lambda: former.bury(known, HELD, now_ms=2),
    ):
        with pytest.raises(Fenced) as refused:
            await change()
        assert (refused.value.details["topic"], refused.value.details["partition"]) == (
            "flights",
            0,
        )
    assert await successor.find(EVERYTHING) == known
    mine = {**HELD, REF: newer}
    await successor.put([for_whom(parked(1), "z")], mine, now_ms=3)
    [one, _] = await successor.parked("g1", [REF, OTHER], each=9)
    assert one.delivery.subscriptions == ("s1", "s2", "z")
    await former.remove([letter for letter in known if letter.ref == OTHER], HELD)
    assert await successor.parked("g1", [OTHER], each=9) == []


async def test_a_fence_is_raised_by_what_is_changed_under_it(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1)], HELD, now_ms=1)
    await store.put([parked(2)], {REF: Fence(9)}, now_ms=2)
    with pytest.raises(Fenced):
        await store.put([parked(3)], HELD, now_ms=3)
    await store.close()
    with pytest.raises(Fenced):
        await letters.letters().put([parked(3)], HELD, now_ms=3)


async def test_of_lanes_that_claim_at_once_the_newest_has_the_letters(letters: Opened) -> None:
    stores = [letters.letters() for _ in range(3)]
    fences = [{ref: Fence(epoch) for ref in (REF, OTHER, FURTHER)} for epoch in range(1, 10)]
    random.Random(4).shuffle(fences)
    await asyncio.gather(
        *(stores[at % 3].claim(held) for at, held in enumerate(fences)), return_exceptions=True
    )
    outcomes = await asyncio.gather(
        *(stores[at % 3].put([parked(at)], held, now_ms=1) for at, held in enumerate(fences)),
        return_exceptions=True,
    )
    wrote = [held for held, outcome in zip(fences, outcomes, strict=True) if outcome is None]
    assert wrote == [{ref: Fence(9) for ref in (REF, OTHER, FURTHER)}]


# --- dead and alive ------------------------------------------------------------------------------


def refused(letter: Letter, *, attempts: int = 5, error: str = "400 \0") -> Letter:
    return msgspec.structs.replace(letter, reason="rejected", attempts=attempts, error=error)


async def test_bury_makes_parked_letters_dead_and_leaves_dead_ones_alone(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2)], HELD, now_ms=1)
    everything = await store.find(EVERYTHING)
    gone = msgspec.structs.replace(everything[0], id=999)
    await store.bury([refused(one) for one in (*everything, gone)], HELD, now_ms=9)
    changed, same = sorted(await store.find(LetterQuery()), key=lambda one: one.delivery.seq)
    assert (changed.attempts, changed.error, changed.at_ms) == (5, "400 ?", 9)
    assert (same.attempts, same.error, same.at_ms) == (3, "400: no", 1)
    assert await store.claim(HELD) == {}


async def test_what_is_buried_joins_the_dead_letter_of_its_reason(letters: Opened) -> None:
    store = letters.letters()
    await store.put([for_whom(dead(1), "a"), for_whom(dead(1, reason="shed"), "b")], HELD, now_ms=1)
    await store.put([for_whom(parked(1), "c")], HELD, now_ms=3)
    [waiting] = await store.parked("g1", [REF], each=9)
    await store.bury([refused(waiting, attempts=6)], HELD, now_ms=4)
    shed, rejected = await store.find(EVERYTHING)
    assert (shed.reason, shed.delivery.subscriptions) == ("shed", ("b",))
    assert (rejected.id, rejected.state, rejected.attempts) == (waiting.id, "dead", 6)
    assert rejected.delivery.subscriptions == ("a", "c")


async def test_revive_twice_does_it_once(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(1), dead(2), parked(3)], HELD, now_ms=1)
    ids = await ids_of(store)
    buried = await ids_of(store, LetterQuery())
    assert await store.revive(ids, now_ms=5) == buried
    assert await store.revive(ids, now_ms=6) == []
    again = await store.revived([REF], after_id=0, limit=9)
    assert [(one.delivery.seq, one.delivery.redelivery, one.at_ms) for one in again] == [
        (1, True, 5),
        (2, True, 5),
    ]


async def test_a_record_that_died_again_is_revived_again(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(1)], HELD, now_ms=1)
    [first] = await ids_of(store)
    await store.revive([first], now_ms=2)
    await store.put([dead(1)], HELD, now_ms=3)
    [second] = await ids_of(store, LetterQuery())
    assert await store.revive([second], now_ms=4) == [second]
    again = await store.revived([REF], after_id=0, limit=9)
    assert [letter.id for letter in again] == [first, second]


async def test_only_dead_letters_are_deleted_and_only_parked_ones_removed(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2), dead(3)], HELD, now_ms=1)
    ids = await ids_of(store)
    kept = await ids_of(store, LetterQuery(state="parked"))
    gone = await ids_of(store, LetterQuery())
    assert await store.delete([*ids, 12_345]) == gone
    assert await store.delete(ids) == []
    assert await ids_of(store) == kept
    await store.put([dead(4)], HELD, now_ms=2)
    await store.remove(await store.find(EVERYTHING), HELD)
    assert seqs(await store.find(EVERYTHING)) == [4]
    await store.remove([], HELD)


async def test_ids_are_never_given_out_twice(letters: Opened) -> None:
    store = letters.letters()
    seen: list[int] = []
    for _ in range(3):
        await store.put([dead(1), dead(2)], HELD, now_ms=1)
        seen += await ids_of(store)
        await store.delete(seen)
    await store.close()
    store = letters.letters()
    await store.put([dead(1)], HELD, now_ms=1)
    seen += await ids_of(store)
    assert seen == sorted(set(seen))


async def test_sweep_forgets_old_dead_letters_up_to_its_limit(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(n) for n in range(1, 2_401)], HELD, now_ms=100)
    await store.put([dead(n, OTHER) for n in range(1, 4)], HELD, now_ms=200)
    await store.put([parked(n) for n in range(1, 4)], HELD, now_ms=1)
    assert await store.sweep(before_ms=100, limit=10) == 0
    assert await store.sweep(before_ms=101, limit=300) == 300
    swept = 300
    while gone := await store.sweep(before_ms=101, limit=5_000):
        swept += gone
    assert swept == 2_400
    assert await store.count(EVERYTHING) == 6
    assert await store.sweep(before_ms=10_000, limit=2) == 2
    assert Counter(one.state for one in await store.find(EVERYTHING)) == {"dead": 1, "parked": 3}


async def test_a_deleted_topic_takes_its_letters_with_it(letters: Opened) -> None:
    store = letters.letters()
    await store.put([parked(1), dead(2), dead(3), parked(4, FURTHER)], HELD, now_ms=1)
    await store.revive((await ids_of(store, LetterQuery()))[:1], now_ms=2)
    deleted = {REF: Fence(8), OTHER: Fence(8)}
    assert await store.abandon(deleted, limit=2) == 2
    assert await store.abandon(deleted, limit=2) == 1
    assert await store.abandon(deleted, limit=2) == 0
    [left] = await store.find(EVERYTHING)
    assert left.ref == FURTHER
    with pytest.raises(Fenced):  # whoever read the topic before
        await store.put([parked(5)], HELD, now_ms=3)


async def test_what_a_topic_that_came_back_has_parked_is_not_forgotten_with_the_former(
    letters: Opened,
) -> None:
    """Whoever forgets the letters of a deleted topic may be late, and the topic be back."""
    store, late = letters.letters(), letters.letters()
    await store.put([parked(1), parked(1, OTHER)], HELD, now_ms=1)
    await store.claim({REF: Fence(9, 4, 1)})
    await store.put([parked(2)], {REF: Fence(9, 4, 1)}, now_ms=2)
    with pytest.raises(Fenced) as caught:
        await late.abandon({REF: Fence(8), OTHER: Fence(8)}, limit=10)
    assert (caught.value.details["partition"], caught.value.epoch) == (0, 9)
    assert seqs(await store.find(EVERYTHING)) == [1, 1, 2]
    assert await late.abandon({OTHER: Fence(8)}, limit=10) == 1


async def test_bulk_changes_may_be_larger_than_a_chunk(letters: Opened) -> None:
    store = letters.letters()
    await store.put([dead(n) for n in range(1, 2_502)], HELD, now_ms=1)
    ids = await ids_of(store, LetterQuery())
    while len(page := await store.find(LetterQuery(), after_id=ids[-1], limit=1_000)):
        ids += [letter.id for letter in page]
    assert len(ids) == 2_501
    assert await store.revive(ids, now_ms=2) == ids
    again = [one for after in (0, ids[999], ids[1_999]) for one in await _revived(store, after)]
    await store.bury(again, HELD, now_ms=3)
    assert await store.count(LetterQuery()) == 2_501
    assert await store.delete(ids) == ids


async def _revived(store: LetterStore, after_id: int) -> list[Letter]:
    return await store.revived([REF], after_id=after_id, limit=1_000)


# --- consumer groups -----------------------------------------------------------------------------


async def test_a_groups_letter_belongs_to_its_target_and_not_to_a_lane(letters: Opened) -> None:
    store = letters.letters()
    await store.claim(HELD)
    await store.put([dead(1), dead(1, gateway=TARGETS[0], reason="failed")], HELD | OWNED, now_ms=1)
    ours = LetterQuery(state=None, group="radar")
    [letter] = await store.find(ours)
    assert await store.revive(await ids_of(store), now_ms=2)
    assert [one.gateway_id for one in await _revived(store, 0)] == ["g1"]
    [again] = await store.find(ours)
    assert (again.id, again.state, again.delivery.redelivery) == (letter.id, "parked", True)
    for stale in ({**OWNED, again.fenced_by: Fence(4)}, {**HELD, again.fenced_by: Fence(4, 9, 9)}):
        with pytest.raises(Fenced):
            await store.remove([again], stale)
        with pytest.raises(Fenced):
            await store.bury([again], stale, now_ms=3)
    await store.bury([refused(again)], OWNED, now_ms=4)
    assert [one.attempts for one in await store.find(LetterQuery(group="radar"))] == [5]
    await store.revive([letter.id], now_ms=5)
    await store.remove(await store.find(ours), {again.fenced_by: Fence(6)})
    assert await store.count(ours) == 0
    assert await store.count(EVERYTHING) == 1


async def test_a_target_that_was_overtaken_writes_no_letter(letters: Opened) -> None:
    old, new = letters.letters(), letters.letters()
    letter = dead(1, gateway=TARGETS[0], reason="failed")
    await new.claim({letter.fenced_by: Fence(6)})
    with pytest.raises(Fenced) as said:
        await old.put([letter], OWNED, now_ms=1)
    assert said.value.epoch == 6
    assert await old.count(EVERYTHING) == 0


async def test_a_deleted_topic_takes_the_letters_of_its_groups_with_it(letters: Opened) -> None:
    store = letters.letters()
    some = [dead(1, gateway=name, reason="failed") for name in TARGETS]
    await store.put([*some, dead(2, FURTHER)], HELD | OWNED, now_ms=1)
    assert await store.abandon({REF: Fence(8)}, limit=10) == 3
    assert await store.count(EVERYTHING) == 1


# --- a naive list as the oracle ------------------------------------------------------------------


@dataclass
class NaiveLetters:
    """The letters as a list, and the port's sentences applied to it one by one."""

    letters: list[Letter] = field(default_factory=list)

    def put(self, new: NewLetter, id_: int, now_ms: int) -> None:
        same = [one for one in self.letters if _identity(one) == _identity(new)]
        if not same or same[0].reason != new.reason:
            self.letters = [one for one in self.letters if one not in same]
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
    reason = one.reason if one.state == "dead" else ""
    return (one.gateway_id, what.topic, what.partition, what.seq, one.state, reason)


def _matches(query: LetterQuery, one: Letter) -> bool:
    what = one.delivery
    return all(
        (
            query.state is None or one.state == query.state,
            not query.ids or one.id in query.ids,
            query.gateway_id is None or one.gateway_id == query.gateway_id,
            query.group is None or group_of(one.gateway_id) == query.group,
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
    seq = chance.randint(1, 12)
    what = delivery(seq, ref, key=[None, "a", "b", ""][seq % 4])  # a record has one key
    state: LetterState = chance.choice(["parked", "dead"])
    return NewLetter(chance.choice(["g1", "g2", *TARGETS]), state, chance.choice(REASONS), what)


def _any_query(chance: random.Random, ids: Sequence[int]) -> LetterQuery:
    def maybe(value: object) -> object:
        return value if chance.random() < 0.3 else None

    wanted = {
        "state": chance.choice(["parked", "dead", None]),
        "ids": tuple(chance.sample(ids, min(len(ids), 20))) if chance.random() < 0.2 else (),
        "gateway_id": maybe(chance.choice(["g1", "g2", "g3", TARGETS[0]])),
        "group": maybe(chance.choice(["radar", "radars", "rada", "flights"])),
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
        await store.put([new], HELD | OWNED, now_ms=now_ms)
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


# --- the store in memory as the oracle -----------------------------------------------------------


async def told(store: LetterStore, chance: random.Random) -> list[object]:
    """All that can be asked, but for the ids, which may have holes."""
    every = await store.find(EVERYTHING, limit=1_000)
    numbers = {letter.id: number for number, letter in enumerate(every)}
    each, limit = chance.randint(1, 4), chance.randint(1, 4)
    refs = chance.sample(sorted(HELD), 2)
    pages = [every, await store.revived(refs, after_id=0, limit=limit)]
    after_seqs = {ref: chance.randint(0, 4) for ref in chance.sample(refs, 1)}
    pages += [
        await store.parked(gateway, refs, each=each, after_seqs=after_seqs)
        for gateway in ("g1", "g2")
    ]
    numbered = [
        [(numbers[one.id], *msgspec.structs.astuple(one)[1:]) for one in page] for page in pages
    ]
    return [numbered, await store.claim(HELD), await store.counts()]


async def change(store: LetterStore, chance: random.Random, now_ms: int) -> int:
    """One of everything that lanes and operators do, to letters chosen by their order; how many
    of them changed, where that is said."""
    every = await store.find(EVERYTHING, limit=1_000)
    some = chance.sample(every, min(len(every), chance.randint(0, 3)))
    ids = [letter.id for letter in some]
    match chance.choice(["put", "put", "put", "remove", "bury", "revive", "delete", "sweep"]):
        case "put":
            new = for_whom(_any_letter(chance), *chance.sample(["a", "b", "c"], 2))
            await store.put([new], HELD | OWNED, now_ms=now_ms)
        case "remove":
            await store.remove(some, HELD | OWNED)
        case "bury":
            await store.bury([refused(one) for one in some], HELD | OWNED, now_ms=now_ms)
        case "revive":
            return len(await store.revive(ids, now_ms=now_ms))
        case "delete":
            return len(await store.delete(ids))
        case "sweep":
            return await store.sweep(before_ms=now_ms - chance.randint(0, 60), limit=100)
    return 0


@pytest.mark.parametrize("letters", durable(LETTERS), indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_any_calls_are_answered_as_the_store_in_memory_answers(
    letters: Opened, seed: int
) -> None:
    store, plain = letters.letters(), MemoryLetterStore()
    for now_ms in range(100):
        mine, theirs = (random.Random(f"{seed} {now_ms}") for _ in range(2))
        assert await change(store, mine, now_ms) == await change(plain, theirs, now_ms)
        assert await told(store, mine) == await told(plain, theirs), now_ms


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
            *(stores[0].put(part, HELD, now_ms=1) for part in parts),
            *(stores[1].put(part[::-1], HELD, now_ms=2) for part in parts[::-1]),
        )
    assert await stores[0].count(EVERYTHING) == 5 * 400


MAKERS = (parked, dead)

WRITER = """
import asyncio, sys
from itertools import count
from tests.contracts.stores import LETTERS
from tests.contracts.test_letters_contract import HELD, OTHER, REF, dead, parked

async def main(adapter, location, name, most):
    store = LETTERS[adapter](location)
    numbers = iter(range(1, most + 1)) if most else count(1)

    async def caller():
        for seq in numbers:
            both = [parked(seq, gateway=name), dead(seq, OTHER, gateway=name)]
            await store.put(both, HELD, now_ms=1)
            sys.stdout.write(f"{seq}\\n")
            sys.stdout.flush()

    await asyncio.gather(*(caller() for _ in range(4)))
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


async def _writer(letters: Opened, name: str, most: int = 0) -> AsyncFork:
    command = ("-c", WRITER, letters.adapter, letters.location, name, str(most))
    return await forked(command, stdout=asyncio.subprocess.PIPE)


@pytest.mark.parametrize("letters", durable(LETTERS), indirect=True)
async def test_processes_that_start_together_share_one_store(letters: Opened) -> None:
    writers = [await _writer(letters, name, 50) for name in ("g1", "g2", "g3")]
    for writer in writers:
        await writer.communicate()
        assert writer.returncode == 0
    store = letters.letters()
    assert await store.count(EVERYTHING) == 3 * 50 * 2
    assert seqs(await store.parked("g2", [REF], each=100)) == list(range(1, 51))


@pytest.mark.parametrize("letters", durable(LETTERS), indirect=True)
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
