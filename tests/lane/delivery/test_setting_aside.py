"""What a lane can't deliver: parked and sent later, dead, shed, or the partition stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.errors import InvalidRequest, NotNow, StorageFailed
from headgate.model.control import from_coordinator
from headgate.model.control.reports import LaneReport
from headgate.model.delivery import Verdict
from headgate.model.event import Fence
from headgate.model.letters import Letter, NewLetter
from headgate.model.position import Tally
from headgate.model.subscription import Subscription
from headgate.ports.letters import Fences
from tests.lane.world import FaultyLetters, LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC

DOWN = NotNow("down")


def report(world: LaneWorld) -> LaneReport:
    return [message for message in world.sent if isinstance(message, LaneReport)][-1]


async def reading(*subscriptions: Subscription, **settings: float | str) -> LaneWorld:
    world = LaneWorld(**settings)  # type: ignore[arg-type]
    world.start()
    await world.subscribed(*(subscriptions or (everything("s1"),)))
    return world


@on_virtual_time
async def test_what_fails_too_often_is_parked_and_settled() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(4)
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3, 4]
    assert world.letters.of("parked")[0].reason == "unreachable"
    assert world.letters.of("parked")[0].error == "down"
    await settle_down(5)
    assert world.position() == 4
    assert world.tally() == Tally(parked=4)


@on_virtual_time
async def test_parked_letters_are_sent_by_themselves_and_nothing_newer_overtakes_them() -> None:
    world = await reading(redrive_every_s=10.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(4)
    await settle_down(2)
    world.append(4)
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3, 4, 5, 6, 7, 8], "the newer ones park behind"
    assert world.gateways.seqs("gateway-1") == []
    await settle_down(10)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not world.letters.letters
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1")[-1] == 9
    assert not world.letters.letters, "back to normal"


@on_virtual_time
async def test_only_the_partitions_with_parked_letters_wait_for_them() -> None:
    world = LaneWorld(partitions=2)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(2)
    await settle_down(2)
    world.append(2, partition=1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 1) == [1, 2]
    assert world.gateways.seqs("gateway-1", 0) == []


@on_virtual_time
async def test_a_lane_that_starts_sends_what_is_parked_before_anything_newer() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(3)
    await settle_down(2)
    await world.ended()
    assert world.position() == 3
    world.append(2)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
    assert not world.letters.letters


@on_virtual_time
async def test_an_open_breaker_parks_at_once_and_one_probe_closes_it() -> None:
    world = await reading(breaker_threshold=3, breaker_timeout_s=30.0, redrive_every_s=10.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 4
    world.append(2)
    await settle_down(2)
    attempts = len(world.gateways.batches)
    assert report(world).links[0].breaker == "open"
    for _ in range(20):
        world.append(1)
        await settle_down(1)
    assert len(world.gateways.batches) == attempts, "nobody tried"
    await settle_down(15)
    assert len(world.gateways.batches) == attempts + 1, "one probe, which failed"
    await settle_down(31)
    assert world.gateways.seqs("gateway-1") == list(range(1, 23))
    await settle_down(1)
    assert report(world).links[0].breaker == "closed"


@on_virtual_time
async def test_a_gateway_that_nobody_subscribes_at_any_more_is_in_no_trouble_for_ever() -> None:
    """All lanes would give up on it after one failure, because of what this one has seen once."""
    world = await reading(breaker_threshold=3, breaker_timeout_s=30.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(2)
    await settle_down(2)
    assert report(world).links[0].breaker == "open"
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(60)
    assert not world.letters.letters
    assert (report(world).links[0].breaker, report(world).links[0].error) == ("closed", "")


@pytest.mark.parametrize(
    "change",
    [{"url": "http://elsewhere"}, {"pid": 77}, {"incarnation": "second"}],
    ids=["moved", "started anew", "started anew at its address"],
)
def test_a_gateway_that_is_not_what_it_was_is_tried_at_once(change: dict[str, Any]) -> None:
    async def scenario() -> None:
        world = await reading(breaker_threshold=3)
        world.gateways.scripts["gateway-1"] = [DOWN] * 3
        world.append(2)
        await settle_down(2)
        known = world.topology("gateway-1", "gateway-2")
        nodes = tuple(msgspec.structs.replace(node, **change) for node in known.nodes)
        world.push(
            from_coordinator.PushTopology(msgspec.structs.replace(known, generation=2, nodes=nodes))
        )
        await settle_down()
        assert world.gateways.seqs("gateway-1") == [1, 2]

    run_virtual(scenario())


@on_virtual_time
async def test_what_waits_goes_to_the_process_that_the_lane_heard_of_last() -> None:
    """Also what was made ready for its predecessor."""
    world = await reading(everything("s1"), batch_max_size=2)
    world.gateways.delays_s["gateway-1"] = 1.0
    world.append(4)
    await settle_down()
    assert [one.incarnation for one in world.gateways.prepared] == [""]
    known = world.topology("gateway-1", "gateway-2")
    nodes = tuple(msgspec.structs.replace(node, incarnation="second") for node in known.nodes)
    world.push(
        from_coordinator.PushTopology(msgspec.structs.replace(known, generation=2, nodes=nodes))
    )
    await settle_down(5)
    sent = [batch for _, batch in world.gateways.batches]
    assert [(one.incarnation, len(one.deliveries)) for one in sent] == [("", 2), ("second", 2)]


@on_virtual_time
async def test_what_is_refused_for_good_is_dead_and_its_neighbours_go_through() -> None:
    world = LaneWorld()
    world.gateways.poison = {("gateway-1", 5)}
    world.append(9)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 6, 7, 8, 9]
    assert world.letters.seqs("dead") == [5]
    letter = world.letters.of("dead")[0]
    assert (letter.reason, letter.error) == (
        "rejected",
        "gateway at http://gateway-1 refused a batch: poison",
    )
    assert world.position() == 9
    assert world.tally() == Tally(acknowledged=8, dead=1)


@on_virtual_time
async def test_a_verdict_of_rejected_makes_one_dead_letter() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [["accepted", "rejected", "accepted"]]
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.letters.seqs("dead") == [2]
    assert world.position() == 3


@on_virtual_time
async def test_a_parked_letter_that_is_refused_when_it_is_sent_is_dead() -> None:
    world = await reading(redrive_every_s=1.0)
    world.gateways.scripts["gateway-1"] = [DOWN, DOWN, DOWN]
    world.gateways.poison = {("gateway-1", 2)}
    world.append(3)
    await settle_down(10)
    assert world.gateways.seqs("gateway-1") == [1, 3]
    assert world.letters.seqs("dead") == [2]
    assert world.letters.seqs("parked") == []


@on_virtual_time
async def test_a_gateway_that_is_far_behind_gets_no_more_than_it_can_take() -> None:
    world = await reading(queue_size=10, read_limit=5, batch_max_size=5, redrive_every_s=5.0)
    world.gateways.fills["gateway-1"] = 0.95
    world.append(1)
    await settle_down()
    world.append(4)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]
    assert world.letters.seqs("parked") == [2, 3, 4, 5]
    assert world.letters.of("parked")[0].reason == "overloaded"
    world.gateways.fills["gateway-1"] = 0.1
    await settle_down(11)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]


@on_virtual_time
async def test_low_priority_is_shed_while_a_gateway_is_behind() -> None:
    low = Subscription("low", "gateway-1", TOPIC, priority="low")
    world = await reading(everything("s1"), low)
    world.gateways.fills["gateway-1"] = 0.75
    world.append(1)
    await settle_down()
    world.append(1)
    await settle_down(6)
    assert [d.subscriptions for d in world.gateways.accepted["gateway-1"]] == [
        ("s1", "low"), ("s1",),
    ]  # fmt: skip
    dead = world.letters.of("dead")
    assert [(one.reason, one.delivery.subscriptions) for one in dead] == [("shed", ("low",))]
    assert world.tally() == Tally(acknowledged=1, dead=1)


@on_virtual_time
async def test_a_straggler_is_parked_and_the_others_keep_their_rate() -> None:
    world = await reading(
        everything("s1"), everything("s2", "gateway-2"),
        queue_size=50, read_limit=10, batch_max_size=10,
    )  # fmt: skip
    world.gateways.delays_s = {"gateway-1": 1.0, "gateway-2": 0.001}
    world.append(1_000)
    await settle_down(3)
    assert world.gateways.seqs("gateway-2") == list(range(1, 1_001))
    assert world.letters.of("parked"), "what the straggler can't take is parked"
    await settle_down(150)
    assert world.gateways.seqs("gateway-1") == list(range(1, 1_001))


@on_virtual_time
async def test_what_waited_too_long_in_memory_is_parked() -> None:
    world = await reading(buffer_timeout_s=3.0, retry_max_attempts=50, breaker_threshold=50)
    world.gateways.scripts["gateway-1"] = [DOWN] * 20
    world.append(2)
    await settle_down(12)
    assert world.letters.of("parked")[0].reason == "too_old"


@on_virtual_time
async def test_letters_of_subscriptions_that_ended_are_released() -> None:
    world = await reading(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(3)
    await settle_down(2)
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(10)
    assert not world.letters.letters
    assert world.gateways.seqs("gateway-1") == []
    assert report(world).links[0].released == 3


@on_virtual_time
async def test_a_gateway_that_fails_is_not_well_because_somebody_left() -> None:
    """What was to be sent to it isn't, and counts for nothing."""
    world = await reading(
        breaker_threshold=2, breaker_timeout_s=600.0, retry_initial_s=2.0, retry_multiplier=1.0
    )
    world.gateways.scripts["gateway-1"] = [DOWN] * 2
    world.append(1)
    await settle_down(1)
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(4)
    assert report(world).links[0].released == 1
    world.push(from_coordinator.SubscriptionChanges(3, (everything("s2"),), ()))
    await settle_down(1)
    world.append(1)
    await settle_down(1)
    assert (len(world.gateways.batches), report(world).links[0].breaker) == (2, "open")


@on_virtual_time
async def test_what_an_operator_wants_again_is_sent_marked_and_holds_nothing_up() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [["rejected", "accepted"]]
    world.append(2)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    [letter] = world.letters.of("dead")
    await world.letters.revive([letter.id], now_ms=1)
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [2, 1]
    assert world.gateways.accepted["gateway-1"][-1].redelivery
    assert not world.letters.letters


@on_virtual_time
async def test_a_damaged_letter_that_is_wanted_again_holds_its_own_partition_alone() -> None:
    """Nor those of it that were written before."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.gateways.rejected = {("gateway-1", 1), ("gateway-1", 2)}
    world.append(3)
    world.append(1, partition=1)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    dead = {(one.ref.partition, one.delivery.seq): one.id for one in world.letters.of("dead")}
    world.letters.damaged = {dead[0, 2]}
    world.gateways.rejected = set()
    await world.letters.revive(list(dead.values()), now_ms=1)
    world.push(from_coordinator.LettersRevived())
    await settle_down(20)
    assert (world.gateways.seqs("gateway-1"), world.gateways.seqs("gateway-1", 1)) == ([3, 1], [1])
    assert world.letters.again == {dead[0, 2]}
    assert "is damaged" in report(world).letters
    again = [one.seq for _, batch in world.gateways.batches for one in batch.deliveries]
    assert sorted(again) == [1, 1, 1, 1, 2, 3], "nothing is sent again that was taken"
    world.letters.damaged.clear()
    await settle_down(10)
    assert world.letters.letters == []
    assert report(world).letters == ""


@on_virtual_time
async def test_a_damaged_letter_that_is_wanted_again_is_dead_again_and_holds_nothing() -> None:
    world = await reading()
    world.gateways.rejected = {("gateway-1", 1), ("gateway-1", 2)}
    world.append(2)
    await settle_down(2)
    first, second = world.letters.of("dead")
    world.gateways.rejected = set()
    world.letters.stored.letters[first.id] = replace(first, damage="a bit has flipped")
    await world.letters.revive([first.id, second.id], now_ms=1)
    world.push(from_coordinator.LettersRevived())
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [2], "of the other nothing is sent to anybody"
    [dead] = world.letters.letters
    assert (dead.id, dead.state) == (first.id, "dead")
    assert "it is damaged" in dead.error
    assert report(world).letters == ""


@on_virtual_time
async def test_a_damaged_letter_that_is_wanted_again_keeps_no_lane_from_beginning() -> None:
    world = await reading()
    world.gateways.rejected = {("gateway-1", 1)}
    world.append(1)
    await settle_down(2)
    [letter] = world.letters.of("dead")
    world.letters.damaged = {letter.id}
    await world.letters.revive([letter.id], now_ms=1)
    await world.ended()
    successor = world.successor(window=4)
    successor.start()
    await successor.subscribed(everything("s1"))
    successor.append(1)
    await settle_down(5)
    assert successor.gateways.seqs("gateway-1") == [2]


@on_virtual_time
async def test_a_partition_of_which_letters_go_forward_does_not_rest() -> None:
    """What is behind a letter that is too large is wanted again, and isn't to blame for it."""
    world = await reading(redrive_every_s=10.0, retry_max_attempts=1)
    world.gateways.scripts["gateway-1"] = [DOWN]
    world.append(5)
    await settle_down(2)
    world.gateways.scripts["gateway-1"] = [
        ["rejected", "retry"],
        ["accepted", "retry", "retry", "retry"],
        ["rejected", "retry", "retry"],
        ["retry", "retry"],
    ]
    await settle_down(10)
    assert (world.letters.seqs("dead"), world.gateways.seqs("gateway-1")) == ([1, 3], [2])
    assert world.letters.seqs("parked") == [4, 5], "of these nothing went forward"
    await settle_down(10)
    assert world.gateways.seqs("gateway-1") == [2, 4, 5]


@pytest.mark.parametrize("queue_size", [1, 2, 3])
def test_the_smallest_queues_keep_a_lane_from_nothing(queue_size: int) -> None:
    @on_virtual_time
    async def scenario() -> None:
        world = await reading(queue_size=queue_size, batch_max_size=1)
        for _ in range(5):
            world.append(1)
            await settle_down(30)
        assert world.position() == 5
        assert not world.letters.of("parked")

    scenario()


@on_virtual_time
async def test_while_letters_cannot_be_written_nothing_is_settled_and_the_source_stops() -> None:
    world = await reading(read_limit=500)
    world.gateways.scripts["gateway-1"] = [DOWN] * 1_000
    world.letters.failing = StorageFailed("the disk is full")
    world.append(30_000)
    await settle_down(60)
    assert world.position() == 0
    assert report(world).letters == "the disk is full"
    assert report(world).read < 20_000
    world.letters.failing = None
    world.gateways.scripts.clear()
    await settle_down(60)
    assert world.gateways.seqs("gateway-1") == list(range(1, 30_001))
    await settle_down(10)
    assert report(world).letters == ""
    assert world.position() == 30_000


@on_virtual_time
async def test_a_lane_reads_nothing_before_it_knows_what_is_parked() -> None:
    world = LaneWorld()
    world.letters.failing = StorageFailed("away")
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.gateways.batches == []
    assert report(world).letters == "away"
    world.letters.failing = None
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]


@on_virtual_time
async def test_without_dead_letters_a_partition_halts_and_goes_on_in_order() -> None:
    world = LaneWorld(dlq_enabled=False, partitions=2, redrive_every_s=10.0)
    world.gateways.poison = {("gateway-1", 3)}
    world.append(6)
    world.start()
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    await settle_down(5)
    world.append(3)
    world.append(2, partition=1)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [1, 2]
    assert world.gateways.seqs("gateway-1", 1) == [1, 2], "the other partition flows"
    assert world.gateways.seqs("gateway-2") == list(range(1, 10)), "and so does the other gateway"
    assert world.letters.of("dead") == []
    assert world.letters.seqs("parked") == [3, 4, 5, 6, 7, 8, 9]
    halted, flowing = report(world).partitions
    assert (halted.state, flowing.state) == ("failed", "flowing")
    assert "record 3" in halted.reason
    assert "routing.dlq.enabled" in halted.reason
    assert (halted.parked, flowing.parked) == (True, False)
    world.gateways.poison.clear()
    await settle_down(15)
    assert not any(one.parked for one in report(world).partitions)
    assert world.gateways.seqs("gateway-1") == list(range(1, 10))
    assert not world.letters.letters
    assert [one.state for one in report(world).partitions] == ["flowing", "flowing"]


@on_virtual_time
async def test_without_dead_letters_a_lane_that_starts_anew_halts_at_the_same_record() -> None:
    world = LaneWorld(dlq_enabled=False, redrive_every_s=10.0)
    world.gateways.poison = {("gateway-1", 2)}
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    await world.ended()
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [1]
    assert "record 2" in report(world).partitions[0].reason
    world.gateways.poison.clear()
    await settle_down(15)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4]


@on_virtual_time
async def test_without_dead_letters_a_lane_that_starts_anew_halts_at_once() -> None:
    """Its gateway gives verdicts one by one, and would take what is behind the refused one."""
    world = LaneWorld(dlq_enabled=False, redrive_every_s=10.0)
    world.gateways.poison = {("gateway-1", 2)}
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    world.gateways.poison = set()
    world.gateways.rejected = {("gateway-1", 2)}
    for _ in range(2):
        await world.ended()
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(25)
    assert world.gateways.seqs("gateway-1") == [1]
    world.gateways.rejected = set()
    await settle_down(25)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4]
    assert not world.letters.letters


@on_virtual_time
async def test_without_dead_letters_what_a_gateway_passed_over_arrives_marked() -> None:
    """It took newer ones already: unmarked, the late one would be dropped as a repeat."""
    world = LaneWorld(dlq_enabled=False, redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [["accepted", "rejected", "accepted"]]
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(12)
    taken = world.gateways.accepted["gateway-1"]
    assert [(one.seq, one.redelivery) for one in taken] == [(1, False), (3, False), (2, True)]


class NoMarks(FaultyLetters):
    """A letter can't be changed to say that it was refused, while `refuses`."""

    refuses = True

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        self._refuse(letters)
        await super().put(letters, fences, now_ms=now_ms)

    async def bury(self, letters: Sequence[Letter], fences: Fences, *, now_ms: int) -> None:
        self._refuse(letters)
        await super().bury(letters, fences, now_ms=now_ms)

    def _refuse(self, letters: Sequence[NewLetter | Letter]) -> None:
        if self.refuses and any(one.reason == "rejected" for one in letters):
            raise StorageFailed("the disk is full")


@pytest.mark.parametrize("dies", [False, True])
def test_without_dead_letters_one_that_was_passed_over_is_marked_although_its_store_failed(
    dies: bool,
) -> None:
    """Or the lane died: what passed it stays until the mark is written."""

    async def scenario() -> None:
        world = LaneWorld(dlq_enabled=False, redrive_every_s=5.0)
        letters = world.letters = NoMarks()
        world.gateways.scripts["gateway-1"] = [DOWN] * 3
        world.gateways.rejected = {("gateway-1", 2)}
        world.append(3)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(8)
        assert set(world.gateways.seqs("gateway-1")) == {1, 3}
        if dies:
            await world.die()
            world = world.successor(window=4)
            world.start()
            await world.subscribed(everything("s1"))
        await settle_down(10)
        letters.refuses = False
        await settle_down(10)
        assert letters.seqs("parked")[:1] == [2]
        world.gateways.rejected = set()
        await settle_down(20)
        taken = [one for one in world.gateways.accepted["gateway-1"] if one.seq == 2]
        assert [one.redelivery for one in taken] == [True], "unmarked it is dropped as a repeat"
        assert not letters.letters

    run_virtual(scenario())


@on_virtual_time
async def test_without_dead_letters_one_that_is_refused_after_it_was_passed_over_is_marked() -> (
    None
):
    """The gateway wanted it later, and took newer ones before that."""
    world = LaneWorld(dlq_enabled=False, redrive_every_s=5.0)
    later: list[Verdict] = ["retry", "accepted", "accepted", "accepted"]
    world.gateways.scripts["gateway-1"] = [DOWN, DOWN, DOWN, later, ["rejected"]]
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(30)
    taken = {(one.seq, one.redelivery) for one in world.gateways.accepted["gateway-1"]}
    assert taken == {(1, True), (2, False), (3, False), (4, False)}


@pytest.mark.parametrize("dlq_enabled", [False, True])
def test_one_that_was_passed_over_arrives_marked_although_the_store_never_said_so(
    dlq_enabled: bool,
) -> None:
    """Its cause is mended before the store can be written again."""

    async def scenario() -> None:
        world = LaneWorld(dlq_enabled=dlq_enabled, redrive_every_s=5.0)
        letters = world.letters = NoMarks()
        world.gateways.scripts["gateway-1"] = [DOWN] * 3
        world.gateways.rejected = {("gateway-1", 2)}
        world.append(3)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(8)
        assert letters.seqs("parked") == [1, 2, 3]
        world.gateways.rejected = set()
        await settle_down(20)
        taken = {(one.seq, one.redelivery) for one in world.gateways.accepted["gateway-1"]}
        assert taken == {(1, False), (2, True), (3, False)}, (
            "unmarked, 2 is dropped as a repeat; 3 is one"
        )
        assert not letters.letters

    run_virtual(scenario())


@on_virtual_time
async def test_a_record_of_which_a_part_is_shed_settles_when_the_other_part_has() -> None:
    low = Subscription("low", "gateway-1", TOPIC, priority="low")
    world = await reading(everything("s1"), low, checkpoint_interval_s=1.0)
    world.gateways.fills["gateway-1"] = 0.75
    world.append(1)
    await settle_down(2)
    world.gateways.delays_s["gateway-1"] = 4.0
    world.append(1)
    await settle_down(3)
    assert [one.delivery.subscriptions for one in world.letters.of("dead")] == [("low",)]
    assert world.position() == 1, "the normal part is still on its way"
    await settle_down(4)
    assert world.position() == 2
    assert world.tally() == Tally(acknowledged=1, dead=1)
    assert not world.life.done()


@on_virtual_time
async def test_shed_for_one_and_rejected_for_another_keeps_both() -> None:
    low = Subscription("low", "gateway-1", TOPIC, priority="low")
    world = await reading(everything("s1"), low)
    world.gateways.fills["gateway-1"] = 0.75
    world.append(1)
    await settle_down()
    world.gateways.scripts["gateway-1"] = [["rejected"]]
    world.append(1)
    await settle_down(6)
    dead = {(one.reason, one.delivery.subscriptions) for one in world.letters.of("dead")}
    assert dead == {("shed", ("low",)), ("rejected", ("s1",))}
    assert world.position() == 2


@on_virtual_time
async def test_a_lane_that_was_overtaken_leaves_the_letters_alone() -> None:
    """Its successor knows of another subscription, of which the former lane knows nothing."""
    world = await reading(redrive_every_s=3.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(2)
    await settle_down(2)
    ref, successor = world.refs[0], Fence(5, 4)
    await world.letters.claim({ref: successor})
    parked = [replace(one.delivery, subscriptions=("s9",)) for one in world.letters.of("parked")]
    other = [NewLetter("gateway-1", "parked", "unreachable", one) for one in parked]
    await world.letters.put(other, {ref: successor}, now_ms=1)
    await settle_down(10)
    left = [one.delivery.subscriptions for one in world.letters.of("parked")]
    assert left == [("s1", "s9"), ("s1", "s9")]
    assert world.life.done(), "it has let go of its only partition"


@on_virtual_time
async def test_a_partition_that_goes_while_its_batch_fails_leaves_nothing_to_do() -> None:
    """Its successor has parked letters, which are none of the former lane's business."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0, retry_max_attempts=1)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.hanging.add("gateway-1")
    world.append(3)
    await settle_down(1)
    ref, newer = world.refs[0], Fence(6)
    await world.letters.claim({ref: newer})
    world.push(from_coordinator.LetGo((world.spec.owns[0],), settle=False))
    batch = world.gateways.batches[0][1]
    parked = [NewLetter("gateway-1", "parked", "unreachable", one) for one in batch.deliveries]
    await world.letters.put(parked, {ref: newer}, now_ms=1)
    await settle_down(10)
    looked = world.letters.looked
    await settle_down(10)
    assert world.letters.looked - looked < 30, "it looks for letters again and again"
    assert world.letters.seqs("parked") == [1, 2, 3]


@on_virtual_time
async def test_what_a_former_lane_sets_aside_after_its_successor_came_is_not_settled() -> None:
    world = await reading(checkpoint_interval_s=1.0)
    await world.letters.claim({world.refs[0]: Fence(5, 4)})
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(2)
    await settle_down(5)
    assert not world.letters.letters
    assert world.position() == 0


@on_virtual_time
async def test_parked_letters_of_a_busy_partition_keep_the_others_from_nothing() -> None:
    world = LaneWorld(partitions=3, batch_max_size=10, redrive_every_s=5.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 12
    for partition, count in ((0, 2_000), (1, 5), (2, 5)):
        world.append(count, partition=partition)
    await settle_down(3)
    assert len(world.letters.of("parked")) > 1_000
    world.gateways.scripts.clear()
    world.gateways.delays_s["gateway-1"] = 1.0
    await settle_down(60)
    assert world.gateways.seqs("gateway-1", 1) == [1, 2, 3, 4, 5]
    assert world.gateways.seqs("gateway-1", 2) == [1, 2, 3, 4, 5]
    assert world.letters.of("parked"), "partition 0 is still at it"
    taken = world.gateways.seqs("gateway-1")
    assert taken == list(range(1, len(taken) + 1))


async def buried(world: LaneWorld, count: int) -> None:
    """The first records are rejected, and then sent again."""
    world.gateways.scripts["gateway-1"] = [["rejected"] * count]
    world.append(count)
    await settle_down(2)
    await world.letters.revive([letter.id for letter in world.letters.of("dead")], now_ms=1)


@on_virtual_time
async def test_retried_letters_that_nobody_takes_hold_no_parked_ones_up() -> None:
    world = await reading(redrive_every_s=5.0)
    world.gateways.slow_readers.add("s1")
    await buried(world, 100)
    world.push(from_coordinator.LettersRevived())
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(3)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [101, 102, 103]
    assert len(world.letters.again) == 100
    world.gateways.slow_readers.clear()
    await settle_down(6)
    assert not world.letters.letters
    assert sorted(world.gateways.seqs("gateway-1")) == list(range(1, 104))


@on_virtual_time
async def test_what_is_retried_goes_to_whoever_is_subscribed_now() -> None:
    """The subscriber has come back: under another id, at another gateway."""
    world = await reading()
    await buried(world, 1)
    again = [everything("s2", "gateway-2"), everything("s3", "gateway-1")]
    world.push(from_coordinator.SubscriptionChanges(2, tuple(again), ("s1",)))
    await settle_down()
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    for gateway_id, name in (("gateway-2", "s2"), ("gateway-1", "s3")):
        [delivered] = world.gateways.accepted[gateway_id]
        assert (delivered.subscriptions, delivered.redelivery) == ((name,), True)
    assert not world.letters.letters


@on_virtual_time
async def test_what_is_retried_and_nobody_wants_stays_dead_and_says_so() -> None:
    world = await reading()
    await buried(world, 1)
    picky = Subscription("s2", "gateway-1", TOPIC, where="number > 5")
    world.push(from_coordinator.SubscriptionChanges(2, (picky,), ("s1",)))
    await settle_down()
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    [letter] = world.letters.of("dead")
    assert letter.reason == "rejected"
    assert "nobody" in letter.error
    assert world.gateways.accepted == {}


@on_virtual_time
async def test_a_retried_letter_stays_until_every_gateway_has_it() -> None:
    world = await reading(everything("s1"), everything("s2", "gateway-2"), redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [["rejected"]]
    world.append(1)
    await settle_down(2)
    [letter] = world.letters.of("dead")
    await world.letters.revive([letter.id], now_ms=1)
    world.gateways.scripts["gateway-2"] = [DOWN]
    world.push(from_coordinator.LettersRevived())
    await settle_down(2)
    assert world.gateways.seqs("gateway-1") == [1]
    assert world.letters.again == {letter.id}, "gateway-2 hasn't answered"
    await settle_down(6)
    assert world.gateways.seqs("gateway-2") == [1, 1]
    assert not world.letters.letters


@on_virtual_time
async def test_a_retried_letter_goes_once_to_the_gateway_that_has_it() -> None:
    """However long the other one is away."""
    world = await reading(
        everything("s1"), everything("s2", "gateway-2"), redrive_every_s=5.0, window_s=1_000.0
    )
    world.gateways.scripts["gateway-1"] = [["rejected"]]
    world.append(1)
    await settle_down(2)
    await world.letters.revive([letter.id for letter in world.letters.of("dead")], now_ms=1)
    world.gateways.scripts["gateway-2"] = [DOWN] * 1_000
    await settle_down(300)
    assert world.gateways.seqs("gateway-1") == [1]
    world.gateways.scripts.clear()
    await settle_down(60)
    assert world.gateways.seqs("gateway-2") == [1, 1]
    assert not world.letters.letters


@on_virtual_time
async def test_a_lane_that_ends_does_not_wait_for_letters() -> None:
    world = await reading(redrive_every_s=1.0, flush_timeout_s=10.0, batch_max_size=10)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.gateways.delays_s["gateway-1"] = 0.4
    world.append(1_000)
    await settle_down(5)
    assert world.letters.of("parked")
    began_s = asyncio.get_running_loop().time()
    await world.ended()
    assert asyncio.get_running_loop().time() - began_s < 5.0


@on_virtual_time
async def test_while_letters_cannot_be_written_the_other_partitions_flow() -> None:
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.letters.failing = StorageFailed("the disk is full")
    world.append(2)
    await settle_down(5)
    world.append(20, partition=1)
    await settle_down(10)
    assert world.gateways.seqs("gateway-1", 1) == list(range(1, 21))


@on_virtual_time
async def test_a_notice_for_a_gateway_that_is_gone_is_not_kept_for_ever() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 50
    world.append(6)
    world.log.lose(world.refs[0], (3, 4, 5))
    world.start()
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    await settle_down(5)
    assert any(one.delivery.lost_from for one in world.letters.of("parked"))
    gone = msgspec.structs.replace(world.topology("gateway-2"), generation=2)
    world.push(from_coordinator.PushTopology(gone))
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(60)
    assert not world.letters.letters


@on_virtual_time
async def test_a_pipeline_that_breaks_ends_its_lane_loudly() -> None:
    world = await reading()
    world.gateways.fills["gateway-1"] = "a mistake"  # type: ignore[assignment]
    world.append(1)
    await settle_down(5)
    assert world.life.done()
    assert isinstance(world.life.exception(), TypeError)


@on_virtual_time
async def test_a_letter_writer_that_breaks_ends_its_lane_loudly() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.letters.failing = ValueError("a mistake")
    world.append(1)
    await settle_down(5)
    assert world.life.done()
    assert isinstance(world.life.exception(), ValueError)


@pytest.mark.parametrize("error", [InvalidRequest("no"), NotNow("no")], ids=["refused", "failing"])
def test_the_other_gateways_get_theirs_meanwhile(error: Exception) -> None:
    async def scenario() -> None:
        world = await reading(everything("s1"), everything("s2", "gateway-2"))
        world.gateways.scripts["gateway-1"] = [error] * 1_000  # type: ignore[list-item]
        for _ in range(30):
            world.append(1)
            await settle_down(0.02)
        assert world.gateways.seqs("gateway-2") == list(range(1, 31))

    run_virtual(scenario())


class SlowLetters(FaultyLetters):
    """Writes a hundred kilobytes at a time and no more."""

    AT_A_TIME_BYTES = 100_000

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[int] = []

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        self.tried.append(sum(len(bytes(one.delivery.document)) for one in letters))
        if self.tried[-1] > self.AT_A_TIME_BYTES and len(letters) > 1:
            await asyncio.sleep(2)
            raise StorageFailed("the database took too long")
        await super().put(letters, fences, now_ms=now_ms)


@pytest.mark.parametrize(
    ("count", "size"),
    [(10_500, 2_000), (300, 150_000)],
    ids=["many", "each of them is too large"],
)
def test_what_is_too_much_for_the_store_at_once_is_written_by_and_by(count: int, size: int) -> None:
    async def scenario() -> None:
        world = LaneWorld(redrive_every_s=3_600.0)
        slow = world.letters = SlowLetters()
        world.start()
        await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
        world.gateways.scripts["gateway-1"] = [DOWN] * 100
        world.append(count, padding="x" * size)
        await settle_down(120)
        assert len(world.gateways.seqs("gateway-2")) == count, "nobody else waits for it"
        assert slow.seqs("parked") == list(range(1, count + 1))
        failed = [tried for tried in slow.tried if tried > slow.AT_A_TIME_BYTES]
        assert max(slow.tried) < 5_000_000
        assert size > slow.AT_A_TIME_BYTES or len(failed) < len(slow.tried) / 3

    run_virtual(scenario())
