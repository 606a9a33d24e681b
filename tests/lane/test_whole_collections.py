"""Records about a whole collection, and those that say that their origin has lost changes."""

from __future__ import annotations

import pytest

from headgate.errors import NotNow
from headgate.model.control import from_coordinator
from headgate.model.delivery import Delivery
from headgate.model.event import Op
from headgate.model.position import Position, Tally
from headgate.model.subscription import Subscription
from tests.lane.delivery.test_gaps import partition, told
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC


def accepted(world: LaneWorld, gateway_id: str = "gateway-1") -> list[Delivery]:
    return world.gateways.accepted.get(gateway_id, [])


def where(name: str, text: str, gateway_id: str = "gateway-1") -> Subscription:
    return Subscription(name, gateway_id, TOPIC, text)


@on_virtual_time
async def test_a_filter_sees_the_collection_of_a_record_as_it_sees_its_key() -> None:
    world = LaneWorld()
    world.log.append({"n": 1}, key="a", collection="shop.orders")
    world.log.append({"n": 2}, key="a", collection="shop.carts")
    world.log.append({"n": 3}, key="a")
    world.log.append({"n": 4, "_collection": "shop.orders"}, key="a", collection="shop.carts")
    world.log.append({"n": 5}, key="a", collection="shop.carts", earlier={"n": 1})
    world.start()
    await world.subscribed(
        where("s1", '_collection == "shop.orders"'),
        where("s2", '_collection == "shop.carts" && n == 1', "gateway-2"),
    )
    assert world.gateways.seqs("gateway-1") == [1, 4]
    assert [(one.seq, one.left) for one in accepted(world, "gateway-2")] == [(5, ("s2",))]


@pytest.mark.parametrize("op", ["truncate", "drop", "rename"])
def test_whoever_does_not_exclude_the_collection_hears_of_the_whole_of_it(op: Op) -> None:
    async def scenario() -> None:
        world = LaneWorld(partitions=2, soft_delete="deleted")
        for number in range(2):
            world.log.append({"n": 1}, key="a", partition=number)
            world.log.about("shop.orders", op, partition=number)
            world.log.append({"n": 2}, key="a", partition=number)
        world.start()
        await world.subscribed(
            everything("all"),
            where("never", "n > 5"),
            where("same", '_collection == "shop.orders" && n > 5'),
            where("other", '_collection == "shop.carts"'),
            *(
                Subscription(f"t{n}", "gateway-2", TOPIC, shard=(2, n), where="n > 5")
                for n in range(2)
            ),
        )
        await settle_down(6)
        for number in range(2):
            assert world.gateways.seqs("gateway-1", number) == [1, 2, 3]
            assert world.gateways.seqs("gateway-2", number) == [2]
            assert world.position(number) == 3
        got = [one for one in accepted(world) if one.seq == 2]
        assert [sorted(one.subscriptions) for one in got] == [["all", "never", "same"]] * 2
        document = b'{"to":"shop.orders.new"}' if op == "rename" else b"null"
        assert {(one.op, one.key, bytes(one.document), one.left) for one in got} == {
            (op, None, document, ())
        }
        [one, _] = accepted(world, "gateway-2")
        assert sorted(one.subscriptions) == ["t0", "t1"], "every target of a group gets it"
        tally = await world.ended()
        assert tally.matched == 8

    run_virtual(scenario())


@on_virtual_time
async def test_what_is_about_a_collection_is_parked_and_sent_again_in_its_place() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [NotNow("down")] * 3
    world.log.append({"n": 1}, key="a")
    world.log.about("shop.orders")
    world.log.append({"n": 2}, key="a")
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3]
    await settle_down(10)
    assert [(one.seq, one.op) for one in accepted(world)] == [
        (1, "insert"), (2, "drop"), (3, "insert"),
    ]  # fmt: skip


@on_virtual_time
async def test_a_dead_letter_about_a_collection_goes_to_whoever_does_not_exclude_it_now() -> None:
    world = LaneWorld()
    world.gateways.rejected.add(("gateway-1", 1))
    world.log.about("shop.orders", "truncate")
    world.start()
    await world.subscribed(where("gone", "n > 5"))
    await settle_down(2)
    [letter] = world.letters.of("dead")
    assert letter.delivery.op == "truncate"
    world.gateways.rejected.clear()
    world.revision += 1
    now = (where("new", "n == 7"), where("other", '_collection == "shop.carts"'))
    world.push(from_coordinator.SubscriptionChanges(world.revision, now, ("gone",)))
    await settle_down()
    await world.letters.revive([letter.id], now_ms=1)
    world.push(from_coordinator.LettersRevived())
    await settle_down(2)
    assert [(one.subscriptions, one.op, one.redelivery) for one in accepted(world)] == [
        (("new",), "truncate", True)
    ]
    assert world.letters.letters == []


@on_virtual_time
async def test_what_was_read_from_an_origin_is_matched_like_an_insert() -> None:
    world = LaneWorld(soft_delete="deleted")
    world.log.append({"n": 7, "deleted": True}, key="a", op="read")
    world.log.append({"n": 1}, key="b", op="read")
    world.start()
    await world.subscribed(where("s1", "n == 7"))
    await settle_down(6)
    assert [(one.seq, one.op) for one in accepted(world)] == [(1, "read")]
    assert world.tally() == Tally(acknowledged=1, unmatched=1)


# --- what an origin has lost ----------------------------------------------------------------------


def marked(world: LaneWorld) -> None:
    world.append(2)
    world.log.mark()
    world.append(1)


@on_virtual_time
async def test_every_gateway_hears_in_its_place_that_the_origin_has_lost_changes() -> None:
    world = LaneWorld(gap_max_s=1e9)
    marked(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (3, 3), (0, 4)]
    assert told(world, "gateway-2") == [(3, 3)]
    assert {one.op for one in accepted(world, "gateway-2")} == {"lost"}
    assert partition(world).state == "flowing"
    assert world.position() == 4
    assert world.tally() == Tally(acknowledged=3, skipped=1)


@on_virtual_time
async def test_the_partition_is_stale_until_all_have_heard_what_the_origin_lost() -> None:
    world = LaneWorld(gap_max_s=1e9, retry_max_attempts=50, breaker_threshold=50)
    world.gateways.scripts["gateway-2"] = [NotNow("down")] * 8
    marked(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    report = partition(world)
    assert report.state == "stale", "nobody knows how much that was"
    assert "record 3 says that its origin has lost changes before it" in report.reason
    assert world.position() == 2
    await settle_down(60)
    assert (partition(world).state, world.position()) == ("flowing", 4)


@pytest.mark.parametrize("gap_enabled", [True, False])
def test_it_is_said_also_where_gaps_are_not_looked_for(*, gap_enabled: bool) -> None:
    async def scenario() -> None:
        world = LaneWorld(gap_enabled=gap_enabled)
        world.log.mark()
        world.log.mark()
        world.append(1)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(6)
        assert told(world, "gateway-1") == [(1, 1), (2, 2), (0, 3)]
        assert world.tally() == Tally(acknowledged=1, skipped=2)
        tally = await world.ended()
        assert tally.read == 3

    run_virtual(scenario())


@on_virtual_time
async def test_a_lane_that_takes_over_before_all_have_heard_of_it_says_it_again() -> None:
    world = LaneWorld(checkpoint_interval_s=0.5)
    world.gateways.hanging.add("gateway-2")
    marked(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(1)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (3, 3), (0, 4)]
    await world.die()
    world.gateways.hanging.clear()
    world.gateways.accepted.clear()
    following = world.successor(window=4)
    following.start()
    await following.subscribed(everything("s1"))
    await settle_down(6)
    assert told(following, "gateway-2") == [(3, 3)]
    assert told(following, "gateway-1") == [(3, 3), (0, 4)]
    assert following.position() == 4
    await following.ended()


@on_virtual_time
async def test_what_is_parked_of_it_comes_before_what_is_newer() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [NotNow("down")] * 3
    marked(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3, 4]
    await settle_down(10)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (3, 3), (0, 4)]
    assert accepted(world)[2].op == "lost"


@on_virtual_time
async def test_what_is_read_again_passes_it_again() -> None:
    world = LaneWorld()
    world.checkpoints.put(world.refs[0], Position(1, redeliver_to=4))
    marked(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 2), (3, 3), (0, 4)]
    assert [one.redelivery for one in accepted(world)] == [True, False, True]


@on_virtual_time
async def test_where_retention_has_taken_it_there_is_a_hole_in_its_place() -> None:
    world = LaneWorld()
    marked(world)
    world.log.lose(world.refs[0], (2, 3))
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (2, 3), (0, 4)]
    assert accepted(world)[1].op == "insert"
