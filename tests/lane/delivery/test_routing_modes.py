"""Where a lane delivers to: holders in every mode, copies where the mode or a lost holder asks."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.errors import PeerUnreachable
from headgate.model.control import from_coordinator
from headgate.model.delivery import Delivery
from headgate.model.topology import GatewayRing, Node, Topology
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down

THREE = ("gateway-1", "gateway-2", "gateway-3")


def topology(generation: int, *gateways: str, ring: GatewayRing | None = None) -> Topology:
    nodes = tuple(Node(name, "gateway", f"http://{name}") for name in gateways)
    return Topology(generation, nodes=nodes, ring=ring)


async def started(world: LaneWorld, first: Topology) -> None:
    world.start()
    await settle_down()
    world.push(from_coordinator.PushTopology(first))


def got(world: LaneWorld, gateway_id: str) -> list[Delivery]:
    return world.gateways.accepted.get(gateway_id, [])


@on_virtual_time
async def test_in_direct_mode_only_the_holder_gets_a_record() -> None:
    world = LaneWorld()
    await started(world, topology(2, *THREE))
    await world.subscribed(everything("s1", "gateway-2"))
    world.append(3)
    await settle_down()
    assert list(world.gateways.accepted) == ["gateway-2"]
    assert not any(one.broadcast for one in got(world, "gateway-2"))


@on_virtual_time
async def test_a_broadcast_goes_to_everybody_and_names_whom_it_knows() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=0)
    await started(world, topology(2, *THREE))
    await world.subscribed(everything("s1", "gateway-2"))
    world.append(2)
    await settle_down()
    for gateway_id in THREE:
        assert world.gateways.seqs(gateway_id) == [1, 2]
        assert all(one.broadcast for one in got(world, gateway_id))
    assert [one.subscriptions for one in got(world, "gateway-2")] == [("s1",), ("s1",)]
    assert [one.subscriptions for one in got(world, "gateway-3")] == [(), ()]


@on_virtual_time
async def test_a_broadcast_names_nobody_of_whom_the_lane_does_not_know_any_more() -> None:
    """Who is there all the same, because the gateway is cut off, has to look into the log: what was
    for them alone has been released."""
    world = LaneWorld(mode="broadcast", max_fanout=0)
    await started(world, topology(2, *THREE))
    await world.subscribed(everything("s1", "gateway-2"), everything("s2", "gateway-3"))
    for gateway_id in ("gateway-2", "gateway-3"):
        world.gateways.scripts[gateway_id] = [PeerUnreachable("not now")]
    world.append(1)
    await settle_down(0.05)
    assert not got(world, "gateway-2")
    world.push(from_coordinator.SubscriptionChanges(world.revision + 1, (), ("s1",)))
    await settle_down()
    assert [(one.subscriptions, one.broadcast) for one in got(world, "gateway-2")] == [((), True)]
    assert [one.subscriptions for one in got(world, "gateway-3")] == [("s2",)]


@on_virtual_time
async def test_a_broadcast_is_limited_but_for_holders() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=1)
    await started(world, topology(2, *THREE))
    await world.subscribed(everything("s1", "gateway-2"), everything("s3", "gateway-3"))
    world.append(4)
    await settle_down()
    assert world.gateways.seqs("gateway-2") == world.gateways.seqs("gateway-3") == [1, 2, 3, 4]
    assert world.gateways.seqs("gateway-1") == []


@on_virtual_time
async def test_what_nobody_wants_is_not_broadcast() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=0)
    world.start()
    await world.subscribed()
    world.append(2)
    await settle_down()
    assert not world.gateways.batches
    await world.ended()
    assert world.tally().unmatched == 2


@on_virtual_time
async def test_without_its_holder_a_record_goes_to_others_who_look_themselves() -> None:
    world = LaneWorld(max_fanout=1)
    await started(world, topology(2, *THREE))
    await world.subscribed(everything("s1", "gateway-2"))
    world.append(1)
    await settle_down()
    world.push(from_coordinator.PushTopology(topology(3, "gateway-1", "gateway-3")))
    await settle_down()
    world.append(4)
    await settle_down()
    assert world.gateways.seqs("gateway-2") == [1]
    copies = [*got(world, "gateway-1"), *got(world, "gateway-3")]
    assert sorted(one.seq for one in copies) == [2, 3, 4, 5], "each went to one of them"
    assert all(one.broadcast and not one.subscriptions for one in copies)
    await world.ended()
    assert (world.position(), world.tally().acknowledged) == (5, 5)


@on_virtual_time
async def test_without_its_holder_a_placed_subscriber_is_sought_along_the_ring() -> None:
    ring = GatewayRing(THREE)
    world = LaneWorld(mode="consistent_hash")
    await started(world, topology(2, *THREE, ring=ring))
    await world.subscribed(everything("subscriber-2.x", "elsewhere"))
    world.append(2)
    await settle_down()
    [first] = world.gateways.accepted
    assert [one.subscriptions for one in got(world, first)] == [(), ()]
    left = tuple(name for name in THREE if name != first)
    world.push(from_coordinator.PushTopology(topology(3, *left, ring=ring)))
    await settle_down()
    world.append(2)
    await settle_down()
    [second] = set(world.gateways.accepted) - {first}
    assert world.gateways.seqs(second) == [3, 4]


@on_virtual_time
async def test_a_copy_for_a_gateway_that_has_gone_is_released() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=0, buffer_timeout_s=1.0, redrive_every_s=2.0)
    world.gateways.hanging.add("gateway-2")
    world.start()
    await world.subscribed(everything("s1"))
    world.append(3)
    await settle_down(40)
    assert world.letters.seqs("parked", "gateway-2") == [1, 2, 3]
    world.push(from_coordinator.PushTopology(topology(2, "gateway-1")))
    await settle_down(60)
    assert world.letters.seqs("parked", "gateway-2") == []
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]


@on_virtual_time
async def test_copies_are_of_low_priority_but_not_for_a_known_holder() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=0, queue_size=100)
    world.gateways.fills = {"gateway-1": 0.75, "gateway-2": 0.75}
    world.start()
    await world.subscribed(everything("s1"))
    world.append(1)
    await settle_down()
    world.append(3)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4]
    assert world.gateways.seqs("gateway-2") == [1]
    assert world.letters.seqs("dead", "gateway-2") == [2, 3, 4]


@on_virtual_time
async def test_copies_are_not_shed_where_nobody_keeps_what_is_shed() -> None:
    world = LaneWorld(mode="broadcast", max_fanout=0, queue_size=100, dlq_enabled=False)
    world.gateways.fills = {"gateway-1": 0.75, "gateway-2": 0.75}
    world.start()
    await world.subscribed(everything("s1"))
    for _ in range(3):
        world.append(1)
        await settle_down()
    assert world.gateways.seqs("gateway-2") == [1, 2, 3]


@on_virtual_time
async def test_what_is_shed_for_one_is_not_looked_for_by_the_gateway_of_another() -> None:
    """It would find that one, and what is dead would arrive."""
    world = LaneWorld(mode="broadcast", max_fanout=0, queue_size=100)
    world.gateways.fills = {"gateway-1": 0.75}
    world.start()
    await world.subscribed(everything("s1"), replace(everything("s2"), priority="low"))
    world.append(1)
    await settle_down()
    world.append(1)
    await settle_down()
    asked, sent = world.gateways.accepted["gateway-1"]
    assert (asked.subscriptions, asked.broadcast) == (("s1", "s2"), True)
    assert (sent.subscriptions, sent.broadcast) == (("s1",), False)
    assert world.letters.seqs("dead", "gateway-1") == [2]
