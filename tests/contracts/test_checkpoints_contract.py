"""What every checkpoint store promises: ports/checkpoints.py."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import pytest

from headgate.errors import Fenced
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import Group
from headgate.model.position import Position, Tally
from headgate.ports.checkpoints import CheckpointStore
from tests.contracts.stores import CHECKPOINTS, Opened, durable
from tests.forks import forked

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)


def every(settled: int) -> Tally:
    """As if every record up to there had been acknowledged."""
    return Tally(acknowledged=settled)


def at(settled: int) -> Position:
    return Position(settled, every(settled))


async def test_a_new_partition_starts_at_0(positions: Opened) -> None:
    store = positions.checkpoints()
    assert await store.list() == {}
    assert await store.claim(REF, Fence(1)) == at(0)
    assert await store.list() == {REF: at(0)}


async def test_what_consumer_groups_keep_is_not_among_the_topics(positions: Opened) -> None:
    store = positions.checkpoints()
    group = Group("@group/flights/radar", "flights", "radar", 4)
    ref = group.position_ref(3, 7)
    for other in (REF, PartitionRef("zebras", 0), PartitionRef("007", 0)):
        await store.claim(other, Fence(1))
    await store.claim(ref, Fence(5))
    await store.save(ref, Fence(5), 42, Tally())
    assert {one.topic for one in await store.list()} == {"flights", "zebras", "007"}
    with pytest.raises(Fenced):
        await store.save(ref, Fence(4), 43, Tally())
    assert (await store.claim(ref, Fence(6))).settled == 42


async def test_a_position_outlives_its_store(positions: Opened) -> None:
    first = positions.checkpoints()
    await first.claim(REF, Fence(1))
    await first.save(REF, Fence(1), 42, every(42))
    await first.close()
    second = positions.checkpoints()
    assert await second.list() == {REF: at(42)}
    assert await second.claim(REF, Fence(2)) == at(42)


@pytest.mark.parametrize(
    ("held", "claimed", "allowed"),
    [
        pytest.param(Fence(2, 5, 1), Fence(2, 5, 1), True, id="the same again"),
        pytest.param(Fence(2, 5, 1), Fence(3, 0, 0), True, id="higher epoch"),
        pytest.param(Fence(2, 5, 1), Fence(2, 6, 0), True, id="next window"),
        pytest.param(Fence(2, 5, 1), Fence(2, 5, 2), True, id="next attempt"),
        pytest.param(Fence(2, 5, 1), Fence(1, 9, 9), False, id="lower epoch"),
        pytest.param(Fence(2, 5, 1), Fence(2, 4, 9), False, id="earlier window"),
        pytest.param(Fence(2, 5, 1), Fence(2, 5, 0), False, id="earlier attempt"),
    ],
)
async def test_of_two_fences_the_lower_one_is_refused(
    positions: Opened, held: Fence, claimed: Fence, allowed: bool
) -> None:
    store = positions.checkpoints()
    await store.claim(REF, held)
    await store.save(REF, held, 7, every(7))
    if allowed:
        assert await store.claim(REF, claimed) == at(7)
        await store.save(REF, claimed, 8, every(8))
    else:
        with pytest.raises(Fenced):
            await store.claim(REF, claimed)
        with pytest.raises(Fenced):
            await store.save(REF, claimed, 8, every(8))
        await store.save(REF, held, 8, every(8))
    assert await store.list() == {REF: at(8)}


@pytest.mark.parametrize(
    ("held", "after", "allowed"),
    [
        pytest.param(Fence(2, 5, 1), Fence(2, 5, 1), True, id="from its holder"),
        pytest.param(Fence(2, 6, 0), Fence(2, 5, 1), False, id="somebody has the same fence"),
        pytest.param(Fence(2, 5, 2), Fence(2, 5, 1), False, id="another has claimed it since"),
        pytest.param(Fence(2, 5, 0), Fence(2, 5, 1), False, id="it never had it"),
        pytest.param(Fence(2, 7, 0), Fence(2, 7, 0), False, id="from a higher one"),
        pytest.param(None, Fence(2, 5, 1), False, id="nobody has it"),
    ],
)
async def test_a_claim_may_be_made_from_one_holder_alone(
    positions: Opened, held: Fence | None, after: Fence, allowed: bool
) -> None:
    store, fence = positions.checkpoints(), Fence(2, 6, 0)
    if held is not None:
        await store.claim(REF, held)
        await store.save(REF, held, 7, every(7))
    if allowed:
        assert await store.claim(REF, fence, after=[Fence(1, 1, 1), after]) == at(7)
        await store.save(REF, fence, 8, every(8))
    else:
        with pytest.raises(Fenced):
            await store.claim(REF, fence, after=[Fence(1, 1, 1), after])
        if held is not None:
            await store.save(REF, held, 8, every(8))


async def test_after_a_claim_the_former_holder_saves_nothing(positions: Opened) -> None:
    old, new = positions.checkpoints(), positions.checkpoints()
    await old.claim(REF, Fence(1))
    await old.save(REF, Fence(1), 5, every(5))
    assert await new.claim(REF, Fence(2)) == at(5)
    with pytest.raises(Fenced):
        await old.save(REF, Fence(1), 9, every(9))
    assert await new.list() == {REF: at(5)}


async def test_a_refusal_names_the_epoch_that_holds_the_partition(positions: Opened) -> None:
    store = positions.checkpoints()
    with pytest.raises(Fenced) as nobody:
        await store.save(REF, Fence(3), 1, every(1))
    await store.claim(REF, Fence(7))
    with pytest.raises(Fenced) as claiming:
        await store.claim(REF, Fence(3))
    with pytest.raises(Fenced) as saving:
        await store.save(REF, Fence(3), 1, every(1))
    assert [said.value.epoch for said in (nobody, claiming, saving)] == [0, 7, 7]


@pytest.mark.parametrize("fence", [Fence(1), Fence(9)], ids=["lower", "higher"])
async def test_only_the_claimed_fence_saves(positions: Opened, fence: Fence) -> None:
    store = positions.checkpoints()
    with pytest.raises(Fenced):
        await store.save(REF, fence, 1, every(1))
    await store.claim(REF, Fence(5))
    with pytest.raises(Fenced):
        await store.save(REF, fence, 1, every(1))
    assert await store.list() == {REF: at(0)}


async def test_a_position_never_goes_back(positions: Opened) -> None:
    store = positions.checkpoints()
    await store.claim(REF, Fence(1))
    await store.claim(OTHER, Fence(1))
    for saved, stored in [(3, 3), (10, 10), (4, 10), (0, 10), (10, 10), (11, 11)]:
        await store.save(REF, Fence(1), saved, every(saved))
        assert await store.list() == {REF: at(stored), OTHER: at(0)}


async def test_the_tally_is_kept_with_the_position_and_changes_only_with_it(
    positions: Opened,
) -> None:
    store = positions.checkpoints()
    await store.claim(REF, Fence(1))
    tally = Tally(acknowledged=1, parked=2, dead=3, released=4, unmatched=5, skipped=6)
    await store.save(REF, Fence(1), 21, tally)
    for not_above in (20, 21):
        await store.save(REF, Fence(1), not_above, Tally(dead=not_above))
    assert await store.list() == {REF: Position(21, tally)}
    assert await store.claim(REF, Fence(2)) == Position(21, tally)
    await store.save(REF, Fence(2), 22, msgspec.structs.replace(tally, dead=4))
    assert (await store.list())[REF].tally.dead == 4


async def test_what_was_tried_in_vain_is_kept_with_the_position(positions: Opened) -> None:
    first, second = positions.checkpoints(), positions.checkpoints()
    await first.claim(REF, Fence(1))
    await first.save(REF, Fence(1), 5, every(5))
    await first.note_tries(REF, Fence(1), ((6, 1, 0), (8, 3, 2)))
    assert await second.claim(REF, Fence(2)) == Position(5, every(5), tried=((6, 1, 0), (8, 3, 2)))
    await second.note_tries(REF, Fence(2), ((8, 4, 2),))
    assert await second.list() == {REF: Position(5, every(5), tried=((8, 4, 2),))}


async def test_what_was_tried_in_vain_means_nothing_once_it_is_settled(positions: Opened) -> None:
    store = positions.checkpoints()
    await store.claim(REF, Fence(1))
    await store.note_tries(REF, Fence(1), ((6, 1, 0), (8, 3, 2)))
    await store.save(REF, Fence(1), 6, every(6))
    assert await store.list() == {REF: Position(6, every(6), tried=((8, 3, 2),))}
    await store.save(REF, Fence(1), 8, every(8))
    assert await store.claim(REF, Fence(2)) == at(8)


async def test_only_the_holder_notes_what_was_tried_in_vain(positions: Opened) -> None:
    old, new = positions.checkpoints(), positions.checkpoints()
    with pytest.raises(Fenced) as nobody:
        await old.note_tries(REF, Fence(1), ((1, 1, 2),))
    await old.claim(REF, Fence(1))
    await new.claim(REF, Fence(2))
    for fence in (Fence(1), Fence(3)):
        with pytest.raises(Fenced) as said:
            await old.note_tries(REF, fence, ((1, 1, 2),))
        assert (nobody.value.epoch, said.value.epoch) == (0, 2)
    assert await new.list() == {REF: at(0)}


async def test_what_is_stopped_stays_so_until_it_is_reset(positions: Opened) -> None:
    first, second = positions.checkpoints(), positions.checkpoints()
    await first.claim(REF, Fence(1))
    await first.save(REF, Fence(1), 5, every(5))
    await first.stop(REF, Fence(1), "its history is lost")
    await first.save(REF, Fence(1), 6, every(6))
    stopped = Position(6, every(6), stopped="its history is lost")
    assert await second.claim(REF, Fence(2)) == stopped
    assert await second.list() == {REF: stopped}
    await second.reset(REF, Fence(3), 6)
    assert await second.claim(REF, Fence(4)) == at(6)


@pytest.mark.parametrize(("settled", "resync"), [(2, False), (9, False), (9, True)])
async def test_wherever_it_is_reset_to_it_is_not_stopped(
    positions: Opened, settled: int, resync: bool
) -> None:
    store = positions.checkpoints()
    await store.claim(REF, Fence(1))
    await store.save(REF, Fence(1), 5, every(5))
    await store.stop(REF, Fence(1), "its history is lost")
    await store.reset(REF, Fence(2), settled, resync=resync)
    assert (await store.claim(REF, Fence(3))).stopped == ""


async def test_only_the_holder_stops_it(positions: Opened) -> None:
    old, new = positions.checkpoints(), positions.checkpoints()
    with pytest.raises(Fenced):
        await old.stop(REF, Fence(1), "why")
    await old.claim(REF, Fence(1))
    await new.claim(REF, Fence(2))
    for fence in (Fence(1), Fence(3)):
        with pytest.raises(Fenced):
            await old.stop(REF, fence, "why")
    assert await new.list() == {REF: at(0)}


RESETS = {
    "nothing yet, to the start": ([(0, False)], Position()),
    "nothing yet, forward": ([(4, False)], Position(4, Tally(skipped=4))),
    "back to the start": ([(10, None), (0, False)], Position(0, every(10), redeliver_to=10)),
    "back": ([(10, None), (3, False)], Position(3, every(10), redeliver_to=10)),
    "back, and told to resync": ([(10, None), (3, True)], Position(3, every(10), redeliver_to=10)),
    "back and back": ([(10, None), (5, False), (2, False)], Position(2, every(10), 10)),
    "back twice to the same": ([(10, None), (5, False), (5, False)], Position(5, every(10), 10)),
    "forward": ([(10, None), (30, False)], Position(30, Tally(acknowledged=10, skipped=20))),
    "forward when subscribers know": ([(10, None), (30, True)], Position(10, every(10), 0, 30)),
    "twice when subscribers know": (
        [(10, None), (30, True), (30, True)],
        Position(10, every(10), 0, 30),
    ),
    "forward at once after all": (
        [(10, None), (30, True), (30, False)],
        Position(30, Tally(acknowledged=10, skipped=20)),
    ),
    "back instead of forward": ([(10, None), (30, True), (1, False)], Position(1, every(10), 10)),
    "where it is": ([(10, None), (10, False)], at(10)),
}


@pytest.mark.parametrize(("steps", "expected"), RESETS.values(), ids=RESETS)
async def test_an_operator_puts_a_position_anywhere(
    positions: Opened, steps: list[tuple[int, bool | None]], expected: Position
) -> None:
    """A step without a word about resync is a save."""
    store = positions.checkpoints()
    for epoch, (settled, resync) in enumerate(steps, 1):
        if resync is None:
            await store.claim(REF, Fence(epoch))
            await store.save(REF, Fence(epoch), settled, every(settled))
        else:
            await store.reset(REF, Fence(epoch), settled, resync=resync)
    assert await store.list() == {REF: expected}
    assert await positions.checkpoints().claim(REF, Fence(9)) == expected


async def test_a_reset_fences_whoever_held_the_position(positions: Opened) -> None:
    lane, operator = positions.checkpoints(), positions.checkpoints()
    await lane.claim(REF, Fence(1, 3, 1))
    await lane.save(REF, Fence(1, 3, 1), 10, every(10))
    await operator.reset(REF, Fence(2), 4)
    with pytest.raises(Fenced):
        await lane.save(REF, Fence(1, 3, 1), 11, every(11))
    assert await lane.claim(REF, Fence(2, 4)) == Position(4, every(10), redeliver_to=10)
    await lane.save(REF, Fence(2, 4), 5, every(11))
    assert await lane.list() == {REF: Position(5, every(11), redeliver_to=10)}


async def test_a_reset_under_a_lower_fence_is_refused_and_changes_nothing(
    positions: Opened,
) -> None:
    store = positions.checkpoints()
    await store.claim(REF, Fence(3, 1))
    await store.save(REF, Fence(3, 1), 10, every(10))
    with pytest.raises(Fenced) as said:
        await store.reset(REF, Fence(3), 2)
    assert said.value.epoch == 3
    await store.save(REF, Fence(3, 1), 11, every(11))
    assert await store.list() == {REF: at(11)}


OF_GROUP = Group("@group/flights/radar", "flights", "radar", 4).position_ref(3, 0)


async def test_what_is_put_back_is_found_there_by_the_next_to_claim_it(positions: Opened) -> None:
    """Its holder has its own positions in memory, and goes on with them."""
    gateway, operator = positions.checkpoints(), positions.checkpoints()
    await gateway.claim(OF_GROUP, Fence(1))
    await gateway.save(OF_GROUP, Fence(1), 10, Tally())
    await gateway.note_tries(OF_GROUP, Fence(1), ((12, 1, 1),))
    await operator.put_back(OF_GROUP, 4, 20)
    assert (await gateway.claim(OF_GROUP, Fence(1))).settled == 10, "its holder asks again"
    await gateway.save(OF_GROUP, Fence(1), 11, Tally())
    with pytest.raises(Fenced):
        await gateway.claim(OF_GROUP, Fence(0))
    for _ in range(2):
        found = await positions.checkpoints().claim(OF_GROUP, Fence(2))
        assert found == Position(4, again_to=11, ahead_to=20), "nothing of it was tried"
    with pytest.raises(Fenced):
        await gateway.save(OF_GROUP, Fence(1), 12, Tally())
    await gateway.save(OF_GROUP, Fence(2), 7, Tally())
    found = await gateway.claim(OF_GROUP, Fence(3))
    assert found == Position(7, again_to=11, ahead_to=20), "once"
    await gateway.save(OF_GROUP, Fence(3), 20, Tally())
    assert (await gateway.claim(OF_GROUP, Fence(4))).ahead_to == 0, "it is there"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param([(10, 10)], Position(10), id="where it is"),
        pytest.param([(10, 15)], Position(10, ahead_to=15), id="where it is, and others further"),
        pytest.param([(12, 15)], Position(10, ahead_to=15), id="it isn't that far"),
        pytest.param([(12, 15), (11, 13)], Position(10, ahead_to=15), id="the further one first"),
        pytest.param([(11, 13), (12, 15)], Position(10, ahead_to=15), id="the further one last"),
        pytest.param(
            [(4, 10), (6, 9)], Position(4, again_to=10, ahead_to=10), id="lower one first"
        ),
        pytest.param([(6, 9), (4, 10)], Position(4, again_to=10, ahead_to=10), id="lower one last"),
        pytest.param([(0, 10)], Position(0, again_to=10, ahead_to=10), id="to the beginning"),
    ],
)
async def test_a_position_is_put_back_and_never_forward(
    positions: Opened, wanted: list[tuple[int, int]], expected: Position
) -> None:
    store = positions.checkpoints()
    await store.claim(OF_GROUP, Fence(1))
    await store.save(OF_GROUP, Fence(1), 10, Tally())
    for settled, until in wanted:
        await store.put_back(OF_GROUP, settled, until)
    assert await store.claim(OF_GROUP, Fence(2)) == expected
    assert await store.claim(OF_GROUP, Fence(3)) == expected


@pytest.mark.parametrize("last", [3, 6, 10])
async def test_what_is_wanted_instead_counts(positions: Opened, last: int) -> None:
    """Not for what was processed: that stays so, wherever it was wanted before."""
    store = positions.checkpoints()
    await store.claim(OF_GROUP, Fence(1))
    await store.save(OF_GROUP, Fence(1), 10, Tally())
    await store.put_back(OF_GROUP, 4, 15)
    await store.put_back(OF_GROUP, last, 10, instead=True)
    found = await store.claim(OF_GROUP, Fence(2))
    assert found == Position(last, again_to=10 if last < 10 else 0, ahead_to=15)


async def test_nobody_has_to_go_back_who_never_began(positions: Opened) -> None:
    store = positions.checkpoints()
    await store.put_back(OF_GROUP, 4, 10)
    assert await store.claim(OF_GROUP, Fence(1)) == Position()
    await store.save(OF_GROUP, Fence(1), 10, Tally())
    assert await store.claim(OF_GROUP, Fence(2)) == Position(10)


@pytest.mark.parametrize("seed", range(3))
async def test_any_sequence_ends_as_the_plain_rule_says(positions: Opened, seed: int) -> None:
    """The oracle: a partition has a holder and a position, written down as the port says it."""
    chance = random.Random(seed)
    stores = [positions.checkpoints() for _ in range(3)]
    held: dict[PartitionRef, Fence] = {}
    settled: dict[PartitionRef, int] = {}
    for _ in range(60):
        store, ref = chance.choice(stores), chance.choice([REF, OTHER])
        # Among so few fences the holder's own comes up often.
        numbers = chance.randint(1, 2), chance.randint(0, 2), chance.randint(0, 1)
        fence = Fence(*numbers, chance.choice(["", "one", "two"]))
        if chance.random() < 0.3:
            allowed = ref not in held or _may_follow(held[ref], fence)
            with contextlib.nullcontext() if allowed else pytest.raises(Fenced):
                assert await store.claim(ref, fence) == at(settled.setdefault(ref, 0))
                held[ref] = fence
        else:
            fence = chance.choice([fence, held.get(ref, fence)])
            position = chance.randint(0, 100)
            allowed = held.get(ref) == fence
            with contextlib.nullcontext() if allowed else pytest.raises(Fenced):
                await store.save(ref, fence, position, every(position))
                settled[ref] = max(settled[ref], position)
        assert await store.list() == {ref: at(position) for ref, position in settled.items()}


def _may_follow(held: Fence, fence: Fence) -> bool:
    if held.numbers != fence.numbers:
        return held.numbers < fence.numbers
    return held.claimant in ("", fence.claimant)


async def test_of_two_that_were_given_the_same_epoch_the_second_is_refused(
    positions: Opened,
) -> None:
    """A coordinator that has forgotten everything may give one out again."""
    one, two = positions.checkpoints(), positions.checkpoints()
    first, second = Fence(5, claimant="one"), Fence(5, claimant="two")
    await one.claim(OF_GROUP, first)
    await one.save(OF_GROUP, first, 3, Tally())
    for fence in (second, Fence(5)):
        with pytest.raises(Fenced) as claiming:
            await two.claim(OF_GROUP, fence)
        assert claiming.value.epoch == 5, "what to go above"
        for refused in (
            two.save(OF_GROUP, fence, 9, Tally()),
            two.note_tries(OF_GROUP, fence, ((9, 1, 1),)),
            two.stop(OF_GROUP, fence, "nothing"),
            two.reset(OF_GROUP, fence, 9),
        ):
            with pytest.raises(Fenced):
                await refused
    assert await one.claim(OF_GROUP, first) == Position(3), "asking again"
    await one.save(OF_GROUP, first, 4, Tally())
    assert await two.claim(OF_GROUP, Fence(6, claimant="two")) == Position(4)
    for fence in (first, second):
        with pytest.raises(Fenced):
            await one.claim(OF_GROUP, fence)


async def test_of_many_that_claim_at_once_under_the_same_epoch_one_holds_it(
    positions: Opened,
) -> None:
    stores = [positions.checkpoints() for _ in range(4)]
    for epoch in range(1, 6):
        fences = [Fence(epoch, claimant=f"{number}") for number in range(4)]
        outcomes = await asyncio.gather(
            *(store.claim(REF, fence) for store, fence in zip(stores, fences, strict=True)),
            return_exceptions=True,
        )
        holds = [fence for fence, outcome in zip(fences, outcomes, strict=True) if outcome == at(0)]
        assert len(holds) == 1
        refused = [outcome for outcome in outcomes if isinstance(outcome, Fenced)]
        assert [error.epoch for error in refused] == [epoch] * 3


async def test_what_nobody_has_claimed_by_name_is_taken_by_the_first_that_does(
    positions: Opened,
) -> None:
    """A former version did, or a coordinator, for whoever has it: he goes on as before, and it
    isn't he who takes up what was wanted meanwhile."""
    store, named = positions.checkpoints(), Fence(5, claimant="one")
    await store.claim(OF_GROUP, Fence(5))
    await store.save(OF_GROUP, Fence(5), 10, Tally())
    await store.put_back(OF_GROUP, 4, 10)
    assert await store.claim(OF_GROUP, named) == Position(10)
    await store.save(OF_GROUP, named, 11, Tally())
    with pytest.raises(Fenced):
        await store.save(OF_GROUP, Fence(5), 12, Tally())
    assert (await store.claim(OF_GROUP, Fence(6, claimant="one"))).settled == 4


async def test_of_two_that_claim_at_once_the_higher_holds_it_afterwards(positions: Opened) -> None:
    one, two = positions.checkpoints(), positions.checkpoints()
    for number in range(20):
        ref = PartitionRef("raced", number)
        low, high = Fence(1, number), Fence(2)
        late, won = await asyncio.gather(
            one.claim(ref, low), two.claim(ref, high), return_exceptions=True
        )
        assert won == at(0)
        assert late == at(0) or isinstance(late, Fenced)
        with pytest.raises(Fenced):
            await one.save(ref, low, 5, every(5))
        await two.save(ref, high, 3, every(3))
    assert set((await one.list()).values()) == {at(3)}


async def test_those_that_claim_at_once_under_the_same_fence_all_hold_it(positions: Opened) -> None:
    stores = [positions.checkpoints() for _ in range(4)]
    assert await asyncio.gather(*(s.claim(REF, Fence(1)) for s in stores)) == [at(0)] * 4
    await asyncio.gather(*(s.save(REF, Fence(1), n, every(n)) for n, s in enumerate(stores)))
    assert await stores[0].list() == {REF: at(3)}


async def test_of_many_at_once_a_refused_one_spoils_nobody_elses(positions: Opened) -> None:
    store = positions.checkpoints()
    refs = [PartitionRef("flights", number) for number in range(20)]
    await store.claim(refs[7], Fence(9))
    outcomes = await asyncio.gather(
        *(store.claim(ref, Fence(2)) for ref in refs), return_exceptions=True
    )
    refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Fenced)]
    assert refused == [7]
    saved = await asyncio.gather(
        *(store.save(ref, Fence(2), 3, every(3)) for ref in refs), return_exceptions=True
    )
    assert [isinstance(outcome, Fenced) for outcome in saved] == [n == 7 for n in range(20)]
    assert await store.list() == {ref: at(0 if ref == refs[7] else 3) for ref in refs}


async def test_what_a_lower_fence_saved_is_never_above_what_a_higher_one_found(
    positions: Opened,
) -> None:
    """Otherwise it moved the position after the claim, and the new owner would repeat nothing."""
    saved: list[tuple[Fence, int]] = []
    found: list[tuple[Fence, int]] = []

    async def follow(store: CheckpointStore, epochs: range) -> None:
        for epoch in epochs:
            fence = Fence(epoch)
            with contextlib.suppress(Fenced):
                position = (await store.claim(REF, fence)).settled
                found.append((fence, position))
                for step in range(1, 4):
                    await store.save(REF, fence, position + step, every(position + step))
                    saved.append((fence, position + step))

    await asyncio.gather(
        *(follow(positions.checkpoints(), range(first, 41, 4)) for first in (1, 2, 3, 4))
    )
    assert saved
    broken = [
        (low, position, high, start)
        for low, position in saved
        for high, start in found
        if low < high and position > start
    ]
    assert not broken
    highest = max(position for _, position in saved)
    assert await positions.checkpoints().list() == {REF: at(highest)}


async def test_a_call_that_was_given_up_leaves_the_store_usable(positions: Opened) -> None:
    """As a lane does that has to end by a deadline."""
    store = positions.checkpoints()
    await store.claim(REF, Fence(1))
    for number in range(1, 11):
        call = asyncio.create_task(store.save(REF, Fence(1), number, every(number)))
        await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await store.save(REF, Fence(1), 20, every(20))
    assert await store.list() == {REF: at(20)}


SAVER = """
import asyncio, sys
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Tally
from tests.contracts.stores import CHECKPOINTS

async def main(adapter, location, number):
    store = CHECKPOINTS[adapter](location)
    shared, own = PartitionRef("flights", 0), PartitionRef("own", number)
    await store.claim(own, Fence(1))
    won = 0
    for turn in range(20):
        fence = Fence(turn * 10 + number)
        try:
            position = await store.claim(shared, fence)
            tally = Tally(unmatched=position.tally.unmatched + 1)
            await store.save(shared, fence, position.settled + 1, tally)
            won += 1
        except Exception as error:
            assert type(error).__name__ == "Fenced", error
        await store.save(own, Fence(1), turn + 1, Tally())
    await store.close()
    print(won)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.parametrize("positions", durable(CHECKPOINTS), indirect=True)
async def test_processes_that_start_together_share_one_store(positions: Opened) -> None:
    """Every save that was not refused moved the position by one, so none was lost."""

    async def run(number: int) -> int:
        command = ("-c", SAVER, positions.adapter, positions.location, str(number))
        process = await forked(command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return int(output)

    won = await asyncio.gather(*map(run, range(4)))
    found = await positions.checkpoints().list()
    assert found[REF] == Position(sum(won), Tally(unmatched=sum(won)))
    assert sum(won) > 0
    assert [found[PartitionRef("own", number)].settled for number in range(4)] == [20] * 4


async def test_what_is_put_ahead_is_told_to_the_next_to_claim_it(positions: Opened) -> None:
    """Its position stays: whoever claims it has to tell its consumer first."""
    gateway, operator = positions.checkpoints(), positions.checkpoints()
    await gateway.claim(OF_GROUP, Fence(1))
    await gateway.save(OF_GROUP, Fence(1), 10, Tally())
    await operator.put_ahead(OF_GROUP, 30)
    await gateway.save(OF_GROUP, Fence(1), 12, Tally())
    for fence in (Fence(2), Fence(3)):
        assert await positions.checkpoints().claim(OF_GROUP, fence) == Position(12, skip_to=30)
    await gateway.save(OF_GROUP, Fence(3), 30, Tally())
    found = await gateway.claim(OF_GROUP, Fence(4))
    assert (found.settled, found.skip_to <= found.settled) == (30, True), "it means nothing there"


async def test_one_that_nobody_had_can_be_put_ahead(positions: Opened) -> None:
    await positions.checkpoints().put_ahead(OF_GROUP, 30)
    assert await positions.checkpoints().claim(OF_GROUP, Fence(1)) == Position(0, skip_to=30)


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_wanted_last_counts(positions: Opened, seed: int) -> None:
    chance, store = random.Random(seed), positions.checkpoints()
    await store.claim(OF_GROUP, Fence(1))
    await store.save(OF_GROUP, Fence(1), 10, Tally())
    await store.put_back(OF_GROUP, 4, 10)
    await store.put_ahead(OF_GROUP, 30)
    if chance.random() < 0.5:
        assert await store.claim(OF_GROUP, Fence(2)) == Position(10, skip_to=30)
    await store.put_back(OF_GROUP, 6, 10)
    assert (await store.claim(OF_GROUP, Fence(3))) == Position(6, again_to=10, ahead_to=10)


async def test_a_groups_positions_are_found_without_claiming_them(positions: Opened) -> None:
    store = positions.checkpoints()
    other = Group("@group/flights/radars", "flights", "radars", 4).position_ref(3, 0)
    for ref, settled in ((OF_GROUP, 7), (other, 9), (REF, 11)):
        await store.claim(ref, Fence(1))
        await store.save(ref, Fence(1), settled, Tally())
    assert await store.of_group("@group/flights/radar") == {OF_GROUP: Position(7)}
    assert await store.of_group("@group/flights/rada") == {}
    await store.save(OF_GROUP, Fence(1), 8, Tally())
