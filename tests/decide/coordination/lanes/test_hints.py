"""What lanes hear of each other: gateways in trouble, and letters to send again."""

from __future__ import annotations

from headgate.model.control.from_coordinator import LettersRevived, TroubledGateways
from headgate.model.control.reports import BreakerState, GatewayLink, LaneReport, PartitionReport
from headgate.model.event import PartitionRef
from tests.decide.coordination.world import World


def two_lanes() -> tuple[World, int, int]:
    world = World()
    world.join("ingest", "ingest-1")
    router = world.join("router", "router-1")
    assert router
    first, second = world.create("flights", 2)
    return world, world.lane(first), world.lane(second)


def report(partition: int, breaker: BreakerState) -> LaneReport:
    link = GatewayLink("gateway-1", breaker=breaker)
    ref = PartitionRef("flights", partition)
    return LaneReport(
        partitions=(PartitionReport(ref, 0, 0, 0),),
        read=0,
        matched=0,
        delivered=0,
        filter_errors=0,
        links=(link,),
    )


def hints(world: World, session: int) -> list[tuple[str, ...]]:
    told = world.inbox[session]
    return [message.gateway_ids for message in told if isinstance(message, TroubledGateways)]


def test_all_lanes_hear_when_one_of_them_gives_up_on_a_gateway_and_when_it_is_well_again() -> None:
    world, one, other = two_lanes()
    for breaker in ("closed", "open", "half_open", "closed"):
        world.say(one, report(0, breaker))
    assert hints(world, other) == [("gateway-1",), ()]


def test_a_gateway_is_in_trouble_as_long_as_one_lane_says_so() -> None:
    world, one, other = two_lanes()
    world.say(one, report(0, "open"))
    world.say(other, report(1, "open"))
    world.say(one, report(0, "closed"))
    assert hints(world, other)[-1] == ("gateway-1",)
    world.say(other, report(1, "closed"))
    assert hints(world, other)[-1] == ()


def test_a_lane_that_starts_hears_of_the_trouble_there_is() -> None:
    world, one, _ = two_lanes()
    world.say(one, report(0, "open"))
    again = world.lane(world.sources("flights")[1], window=2)
    assert hints(world, again) == [("gateway-1",)]


def test_only_the_readers_of_revived_letters_are_told_to_look() -> None:
    world, one, other = two_lanes()
    world.apply(world.cluster.letters_revived([PartitionRef("flights", 1)]))
    assert LettersRevived() not in world.inbox[one]
    assert LettersRevived() in world.inbox[other]
