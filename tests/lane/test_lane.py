"""A lane from its start to its tally: order, settling, fences, and every setting it has."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from headgate.errors import NotNow, StorageFailed
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import LaneReport
from headgate.model.event import Fence
from headgate.model.position import Position
from headgate.model.subscription import Subscription
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC


@on_virtual_time
async def test_nothing_is_read_before_the_subscriptions_are_there() -> None:
    world = LaneWorld()
    world.append(3)
    world.start()
    await settle_down(30)
    reports = [message for message in world.sent if isinstance(message, LaneReport)]
    assert reports[-1].read == 0
    assert world.gateways.batches == []
    await world.subscribed(everything("s1"))
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]


@on_virtual_time
async def test_it_starts_at_the_stored_position_under_its_own_fence() -> None:
    world = LaneWorld(attempt=2)
    world.checkpoints.put(world.refs[0], Position(2))
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    assert world.gateways.seqs("gateway-1") == [3, 4]
    assert world.checkpoints.stored[world.refs[0]].fence == Fence(5, 3, 2)
    batch = world.gateways.batches[0][1]
    assert (batch.window, batch.attempt, batch.deliveries[0].epoch) == (3, 2, 5)


@on_virtual_time
async def test_a_record_goes_once_to_each_gateway_with_all_its_subscriptions() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(
        everything("a"), everything("b"), everything("c", "gateway-2"),
        Subscription("never", "gateway-1", TOPIC, "number < 0"),
    )  # fmt: skip
    world.append(1)
    await settle_down()
    [one], [two] = world.gateways.accepted["gateway-1"], world.gateways.accepted["gateway-2"]
    assert sorted(one.subscriptions) == ["a", "b"]
    assert two.subscriptions == ("c",)


@on_virtual_time
async def test_a_filter_sees_the_key_of_a_record_unless_its_document_has_such_a_field() -> None:
    world = LaneWorld()
    world.log.append({"n": 1}, key="a")
    world.log.append({"n": 2}, key="b")
    world.log.append({"n": 3})
    world.log.append({"n": 4, "_key": "a"}, key="b")
    world.log.append({"n": 5}, key="b", earlier={"n": 1})
    world.start()
    await world.subscribed(
        Subscription("s1", "gateway-1", TOPIC, '_key == "a"'),
        Subscription("s2", "gateway-2", TOPIC, '_key == "b" && n == 1'),
    )
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1, 4]
    assert [(one.seq, one.left) for one in world.gateways.accepted["gateway-2"]] == [(5, ("s2",))]


@on_virtual_time
async def test_unmatched_records_are_settled_without_a_delivery() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(Subscription("s1", "gateway-1", TOPIC, "number > 1000"))
    world.append(10)
    await settle_down()
    tally = await world.ended()
    assert world.gateways.batches == []
    assert world.position() == 10
    assert (tally.read, tally.matched, tally.delivered) == (10, 0, 0)


@on_virtual_time
async def test_an_unanswered_delivery_holds_the_position() -> None:
    world = LaneWorld(flush_timeout_s=1.0)
    world.gateways.hanging.add("gateway-1")
    world.start()
    await world.subscribed(
        Subscription("s1", "gateway-1", TOPIC, "number == 3"), everything("s2", "gateway-2")
    )
    world.append(6)
    await settle_down()
    await world.ended()
    assert world.gateways.seqs("gateway-2") == [1, 2, 3, 4, 5, 6]
    assert world.position() == 3, "record 4 is the one with number 3"


@on_virtual_time
async def test_a_gateway_that_does_not_answer_slows_no_other() -> None:
    world = LaneWorld()
    world.gateways.hanging.add("gateway-1")
    world.start()
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    for _ in range(20):
        world.append(1)
        await settle_down(0.05)
    assert world.gateways.seqs("gateway-2") == list(range(1, 21))
    assert world.gateways.seqs("gateway-1") == []


@on_virtual_time
async def test_one_with_a_long_way_to_go_does_not_hold_the_others() -> None:
    """It is read all the time, and has been for a while when the other one grows."""
    world = LaneWorld(partitions=2)
    world.log.read_takes_s = 0.02
    world.append(50_000)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(0.5)
    world.append(1, partition=1)
    await settle_down(0.5)
    assert world.gateways.seqs("gateway-1", 1) == [1]
    assert len(world.gateways.seqs("gateway-1", 0)) < 50_000, "it isn't through yet"


@on_virtual_time
async def test_failed_batches_are_sent_again_in_order() -> None:
    world = LaneWorld(batch_max_size=3, retry_max_attempts=6)
    world.gateways.scripts["gateway-1"] = [
        NotNow("no"), NotNow("no"), ["accepted"], ["accepted", "retry"], NotNow("no"),
    ]  # fmt: skip
    world.start()
    await world.subscribed(everything("s1"))
    world.append(8)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == list(range(1, 9))
    await world.ended()
    assert world.position() == 8


@on_virtual_time
async def test_a_batch_is_made_ready_while_the_one_before_it_is_under_way() -> None:
    world = LaneWorld(batch_max_size=3)
    world.gateways.delays_s["gateway-1"] = 1.0
    world.start()
    await world.subscribed(everything("s1"))
    world.append(10)
    await settle_down(0.5)
    world.gateways.prepared.clear()
    await settle_down(20)
    assert world.gateways.seqs("gateway-1") == list(range(1, 11))
    ready = [id(batch) for batch in world.gateways.prepared]
    assert ready, "three more waited while one was under way"
    assert set(ready) <= {id(batch) for _, batch in world.gateways.batches}


@on_virtual_time
async def test_what_was_made_ready_and_isnt_wanted_any_more_is_not_sent() -> None:
    world = LaneWorld(batch_max_size=3)
    world.start()
    await world.subscribed(everything("s1"), everything("s2"))
    world.append(1)
    await settle_down(1)
    world.gateways.delays_s["gateway-1"] = 1.0
    world.append(9)
    await settle_down(0.5)
    world.append(9)
    await settle_down(2)
    assert world.gateways.prepared
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    after_s = asyncio.get_running_loop().time()
    await settle_down(20)
    assert world.gateways.seqs("gateway-1") == list(range(1, 20))
    sent = [batch for at_s, batch in world.gateways.batches if at_s > after_s]
    assert {one.subscriptions for batch in sent for one in batch.deliveries} == {("s2",)}


@on_virtual_time
async def test_retries_back_off_as_configured() -> None:
    world = LaneWorld(
        retry_initial_s=1.0, retry_max_s=4.0, retry_multiplier=2.0, retry_max_attempts=9,
        breaker_threshold=9,
    )  # fmt: skip
    world.gateways.scripts["gateway-1"] = [NotNow("no")] * 5
    world.start()
    await world.subscribed(everything("s1"))
    world.append(1)
    await settle_down(60)
    at_s = [when for when, _ in world.gateways.batches]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at_s)]
    for pause, full in zip(pauses, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert full / 2 <= pause <= full


@on_virtual_time
async def test_what_nobody_waits_for_any_more_is_released() -> None:
    world = LaneWorld()
    world.gateways.hanging.add("gateway-1")
    world.start()
    await world.subscribed(everything("s1"))
    world.append(5)
    await settle_down()
    world.push(from_coordinator.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(20)
    tally = await world.ended()
    assert world.position() == 5
    assert tally.delivered == 0


@on_virtual_time
async def test_a_stale_fence_ends_the_lane_and_saves_nothing() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [["accepted", "stale_fence"]]
    world.start()
    await world.subscribed(everything("s1"))
    world.append(2)
    tally = await world.dead()
    assert tally.fenced
    assert world.checkpoints.saves == []


@on_virtual_time
async def test_a_lane_that_was_overtaken_reads_nothing() -> None:
    world = LaneWorld()
    await world.checkpoints.claim(world.refs[0], Fence(6))
    world.append(2)
    world.start()
    tally = await world.dead()
    assert tally.fenced
    assert world.log.reads == 0


@on_virtual_time
async def test_a_lane_whose_checkpoint_was_claimed_by_another_stops() -> None:
    world = LaneWorld(checkpoint_interval_s=1.0)
    world.start()
    await world.subscribed()
    world.append(1)
    await settle_down(0.1)
    await world.checkpoints.claim(world.refs[0], Fence(6))
    tally = await world.dead()
    assert tally.fenced
    assert world.position() == 0


@on_virtual_time
async def test_a_refusal_by_the_coordinator_ends_the_lane() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed()
    world.push(from_coordinator.Refused("flights:0 is no longer read under epoch 5"))
    assert (await world.dead()).fenced


@on_virtual_time
async def test_the_end_of_the_window_flushes_and_saves_everything() -> None:
    world = LaneWorld(partitions=2, batch_flush_interval_s=5.0, batch_max_wait_s=5.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.append(1)
    await settle_down()
    world.append(2, partition=0)
    world.append(2, partition=1)
    await settle_down(0.1)
    tally = await world.ended("the assignment changed")
    assert tally.reason == "the assignment changed"
    assert (world.position(0), world.position(1)) == (3, 2)
    assert world.session is not None
    assert world.session.closed


@on_virtual_time
async def test_a_window_ends_by_itself_when_its_time_is_up() -> None:
    world = LaneWorld(window_s=7.0)
    world.start()
    await world.subscribed()
    tally = await world.lane.tally()
    assert tally.reason == "time"
    assert asyncio.get_running_loop().time() == pytest.approx(7.0, abs=0.1)


@on_virtual_time
async def test_a_lane_goes_on_after_its_tally_until_its_successor_takes_over() -> None:
    world = LaneWorld(window_s=5.0, checkpoint_interval_s=60.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.append(2)
    await world.lane.tally()
    assert world.position() == 2, "saved for the successor"
    world.append(2)
    await settle_down(1)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4]
    await world.checkpoints.claim(world.refs[0], Fence(5, 4))
    world.push(from_coordinator.Refused("window 4, attempt 0 has taken over"))
    await world.life
    assert world.position() == 2, "from the successor's claim on, nothing of this lane counts"


@on_virtual_time
async def test_an_assignment_that_changed_hands_over_at_once() -> None:
    world = LaneWorld(window_s=500.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.push(from_coordinator.EndWindow("the assignment changed"))
    tally = await world.lane.tally()
    assert tally.reason == "the assignment changed"
    assert asyncio.get_running_loop().time() < 1.0
    assert not world.life.done()
    await world.ended()


@on_virtual_time
async def test_a_window_goes_on_while_the_coordinator_is_away() -> None:
    world = LaneWorld(window_s=7.0)
    world.start()
    await world.subscribed(everything("s1"))
    assert world.session is not None
    world.session.cut()
    await settle_down(60)
    world.append(3)
    await settle_down(1)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]
    world.welcome()
    assert (await world.lane.tally()).reason == "time"


@on_virtual_time
async def test_subscriptions_are_acknowledged_after_they_are_applied() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed()
    world.push(from_coordinator.SubscriptionChanges(2, (everything("s1"),)))
    await settle_down()
    assert to_coordinator.AckSubscriptions(2) in world.sent
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]
    world.push(from_coordinator.SubscriptionChanges(1, (), ("s1",)))
    await settle_down()
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1, 2], "an older revision changes nothing"


@on_virtual_time
async def test_nothing_is_read_with_half_a_snapshot_in_parts() -> None:
    world = LaneWorld()
    world.start()
    await settle_down()
    world.append(1)
    world.push(from_coordinator.SubscriptionSnapshot(4, (everything("s1"),), more=True))
    await settle_down()
    assert world.gateways.batches == []
    assert to_coordinator.AckSubscriptions(4) not in world.sent
    world.push(from_coordinator.SubscriptionSnapshot(4, (everything("s2", "gateway-2"),)))
    await settle_down()
    assert to_coordinator.AckSubscriptions(4) in world.sent
    assert world.gateways.seqs("gateway-1") == world.gateways.seqs("gateway-2") == [1]


@on_virtual_time
async def test_a_filter_that_fails_on_an_event_is_no_match_and_counted() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(Subscription("s1", "gateway-1", TOPIC, "number / 0 == 1"))
    world.append(3)
    await settle_down(1)
    reports = [m for m in world.sent if isinstance(m, LaneReport)]
    assert reports[-1].filter_errors == 3
    assert world.gateways.batches == []


@pytest.mark.parametrize(
    "document",
    [b'{"number": 1e999}', b'{"number": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"],
    ids=["number", "depth"],
)
def test_a_document_that_nobody_can_represent_stops_nothing(document: bytes) -> None:
    @on_virtual_time
    async def scenario() -> None:
        world = LaneWorld()
        world.start()
        await world.subscribed(
            everything("all"), Subscription("some", "gateway-2", TOPIC, "number >= 0")
        )
        world.append(1)
        world.log.append(document)
        world.append(1)
        await settle_down(1)
        assert world.gateways.seqs("gateway-1") == [1, 2, 3]
        assert world.gateways.seqs("gateway-2") == [1, 3]
        await world.ended()
        assert world.position() == 3

    scenario()


@on_virtual_time
async def test_of_a_name_that_is_twice_in_a_document_the_last_one_counts() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(Subscription("two", "gateway-1", TOPIC, "number == 2"))
    world.log.append(b'{"number": 1, "number": 2}')
    world.log.append(b'{"number": 2, "number": 1}')
    await settle_down(1)
    assert world.gateways.seqs("gateway-1") == [1]


@on_virtual_time
async def test_a_subscription_that_comes_late_says_how_far_was_read_without_it() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(everything("early"))
    world.append(3)
    await settle_down()
    world.push(from_coordinator.SubscriptionChanges(2, (everything("late"),)))
    await settle_down()
    world.append(1)
    await settle_down()
    first, *_, last = world.gateways.accepted["gateway-1"]
    assert first.since == ()
    assert dict(zip(last.subscriptions, last.since, strict=True)) == {"early": 0, "late": 3}


@on_virtual_time
async def test_an_unforeseen_error_of_a_transport_loses_nothing() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [RuntimeError("a bug")]  # type: ignore[list-item]
    world.start()
    await world.subscribed(everything("s1"))
    world.append(3)
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]


@on_virtual_time
async def test_a_lane_that_fails_gives_no_tally() -> None:
    world = LaneWorld()
    world.log.failing = RuntimeError("a bug")
    world.append(1)
    world.start()
    await world.subscribed(everything("s1"))
    with pytest.raises(RuntimeError):
        await world.lane.tally()
    await asyncio.gather(world.life, return_exceptions=True)


class TestSettings:
    def test_batch_max_size_bounds_every_batch(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(batch_max_size=7)
            world.start()
            await world.subscribed(everything("s1"))
            world.append(50)
            await settle_down(1)
            assert max(len(b.deliveries) for _, b in world.gateways.batches) == 7
            assert world.gateways.seqs("gateway-1") == list(range(1, 51))

        run_virtual(scenario())

    @pytest.mark.parametrize(
        ("settings", "pause_s"),
        [
            pytest.param({"batch_flush_interval_s": 2.0, "batch_max_wait_s": 9.0}, 2.0, id="flush"),
            pytest.param({"batch_flush_interval_s": 9.0, "batch_max_wait_s": 3.0}, 3.5, id="wait"),
        ],
    )
    def test_small_batches_are_spaced_as_configured(
        self, settings: dict[str, Any], pause_s: float
    ) -> None:
        async def scenario() -> None:
            world = LaneWorld(**settings)
            world.start()
            await world.subscribed(everything("s1"))
            world.append(1)
            await settle_down(0.5)
            world.append(1)
            await settle_down(10)
            first_s, second_s = (when for when, _ in world.gateways.batches)
            assert second_s - first_s == pytest.approx(pause_s, abs=0.1)

        run_virtual(scenario())

    def test_delivery_timeout_is_given_to_the_transport(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(delivery_timeout_s=1.25)
            world.start()
            await world.subscribed(everything("s1"))
            world.append(1)
            await settle_down()
            assert world.gateways.timeouts_s == [1.25]

        run_virtual(scenario())

    def test_a_backlog_is_read_no_faster_than_a_gateway_that_keeps_pace_takes_it(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(queue_size=20, read_limit=5, batch_max_size=5)
            world.gateways.delays_s["gateway-1"] = 0.01
            world.start()
            world.append(500)
            await world.subscribed(everything("s1"))
            await settle_down(30)
            assert world.gateways.seqs("gateway-1") == list(range(1, 501))
            assert not world.letters.letters, "nothing was parked on the way"

        run_virtual(scenario())

    @pytest.mark.parametrize(
        ("settings", "at_s"),
        [
            pytest.param({"checkpoint_interval_s": 4.0}, 4.0, id="by time"),
            pytest.param(
                {"checkpoint_event_count": 5, "checkpoint_interval_s": 60.0}, 0.4, id="by count"
            ),
        ],
    )
    def test_positions_are_saved_by_time_or_count(
        self, settings: dict[str, Any], at_s: float
    ) -> None:
        async def scenario() -> None:
            world = LaneWorld(**settings)
            world.start()
            await world.subscribed()
            world.append(5)
            await settle_down(20)
            assert [settled for _, _, settled in world.checkpoints.saves] == [5]
            assert world.checkpoints.saves[0][0] == pytest.approx(at_s, abs=0.3)

        run_virtual(scenario())

    def test_what_counts_for_a_save_is_settled_not_only_read(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(checkpoint_event_count=5, checkpoint_interval_s=60.0)
            world.gateways.hanging.add("gateway-1")
            world.start()
            await world.subscribed(Subscription("s1", "gateway-1", TOPIC, "number == 0"))
            world.append(5)
            await settle_down()
            assert world.checkpoints.saves == [], "the first record of five is still in flight"
            world.gateways.hanging.clear()
            await settle_down(10)
            assert [settled for _, _, settled in world.checkpoints.saves] == [5]

        run_virtual(scenario())

    def test_a_failed_save_is_tried_again_and_stops_nothing(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(checkpoint_interval_s=1.0)
            world.start()
            await world.subscribed(everything("s1"))
            world.checkpoints.failing = StorageFailed("full")
            world.append(5)
            await settle_down(3)
            assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
            world.checkpoints.failing = None
            await settle_down(3)
            assert world.position() == 5

        run_virtual(scenario())

    def test_flush_timeout_bounds_the_end(self) -> None:
        async def scenario() -> None:
            world = LaneWorld(flush_timeout_s=2.5, delivery_timeout_s=100.0)
            world.gateways.hanging.add("gateway-1")
            world.start()
            await world.subscribed(everything("s1"))
            world.append(1)
            await settle_down()
            started_s = asyncio.get_running_loop().time()
            await world.ended()
            assert asyncio.get_running_loop().time() - started_s == pytest.approx(2.5, abs=0.1)
            assert world.position() == 0

        run_virtual(scenario())
