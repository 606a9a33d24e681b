"""What became of every record, as the status sums it up, and how partitions fare."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.coordination.views.accounting import newest, partition_state, sum_of, totals
from headgate.decide.coordination.views.status import Stored, describe
from headgate.decide.lane.checkpoints import Reset
from headgate.model import api
from headgate.model.control import to_coordinator
from headgate.model.control.reports import (
    GatewayLink,
    IngestReport,
    LaneReport,
    PartitionReport,
    PartitionState,
)
from headgate.model.event import PartitionRef
from headgate.model.position import Position, Tally
from tests.decide.coordination.world import World, ref

REF = PartitionRef("flights", 0)
counts = st.integers(0, 50)
tallies = st.builds(Tally, counts, counts, counts, counts, counts, counts)


def partition(head: int, settled: int, tally: Tally, **fields: object) -> api.TopicPartition:
    made = api.TopicPartition(
        0, head, settled, head - settled, 0, "ingest-1", "router-1", 1, tally=tally
    )
    return msgspec.structs.replace(made, **fields)


NONE = Tally()


def report(settled: int, tally: Tally = NONE, state: PartitionState = "flowing") -> PartitionReport:
    return PartitionReport(REF, settled + 5, settled, 0, tally, state, f"it is {state}")


def kinds(found: api.Totals) -> int:
    return (
        found.acknowledged
        + found.parked
        + found.dead
        + found.released
        + found.unmatched
        + found.skipped
    )


@given(st.lists(st.tuples(tallies, counts), max_size=8))
def test_every_record_is_accounted_for(given_: list[tuple[Tally, int]]) -> None:
    found = totals(partition(t.total + waiting, t.total, t) for t, waiting in given_)
    assert found.appended == found.settled + found.waiting
    assert found.settled == kinds(found)
    assert (found.repeated, found.uncounted) == (0, 0)
    assert found.dead == sum(t.dead for t, _ in given_)


@given(st.lists(st.tuples(tallies, counts, counts), max_size=8))
def test_where_the_counts_are_apart_it_is_said_by_how_many(
    given_: list[tuple[Tally, int, int]],
) -> None:
    found = totals(partition(settled + waiting, settled, t) for t, settled, waiting in given_)
    assert found.appended == found.settled + found.waiting
    assert found.settled + found.repeated == kinds(found) + found.uncounted
    assert sum_of([found, found]).repeated == 2 * found.repeated


@pytest.mark.parametrize(
    ("reported", "stored", "expected"),
    [
        pytest.param(None, Position(), (0, Tally()), id="nothing yet"),
        pytest.param(None, Position(3, Tally(dead=3)), (3, Tally(dead=3)), id="nobody reads it"),
        pytest.param(
            report(9, Tally(acknowledged=9)), Position(3, Tally(dead=3)),
            (9, Tally(acknowledged=9)), id="the lane is ahead",
        ),
        pytest.param(
            report(2, Tally(acknowledged=2)), Position(3, Tally(acknowledged=3)),
            (3, Tally(acknowledged=3)), id="the report is older",
        ),
    ],
)  # fmt: skip
def test_the_tally_is_that_of_the_position_that_counts(
    reported: PartitionReport | None, stored: Position, expected: tuple[int, Tally]
) -> None:
    assert newest(reported, stored) == expected


@pytest.mark.parametrize(
    ("fields", "reported", "state", "reason"),
    [
        pytest.param({}, report(1), "healthy", "", id="flowing"),
        pytest.param({"lag_ms": 30_000}, report(1), "healthy", "", id="a little late"),
        pytest.param({"lag_ms": 30_001}, report(1), "lagging", "waits", id="late"),
        pytest.param({"lag_ms": 30_001}, None, "lagging", "no lane", id="late without a lane"),
        pytest.param({"router": None}, None, "healthy", "", id="nobody reads it, nothing waits"),
        pytest.param(
            {"router": None, "lag_ms": 30_001}, None, "failed", "no router", id="nobody reads it"
        ),
        pytest.param({"owner": None}, report(1), "failed", "no ingest", id="nobody takes records"),
        pytest.param(
            {"lag_ms": 99_999}, report(1, state="stale"), "stale", "it is stale", id="lost records"
        ),
        pytest.param(
            {"owner": None}, report(1, state="failed"), "failed", "it is failed", id="stopped"
        ),
    ],
)
def test_a_partition_that_is_not_well_says_why(
    fields: dict[str, object], reported: PartitionReport | None, state: str, reason: str
) -> None:
    found, why = partition_state(partition(5, 1, Tally(), **fields), reported)
    assert found == state
    assert reason in why
    assert bool(why) == (state != "healthy")


def shown(world: World, stored: Position) -> api.Status:
    return describe(
        world.cluster,
        version="0",
        stored=Stored({ref("flights"): stored}, {}),
        now_ms=world.now_ms,
        wall_ms=0,
    )


def test_the_status_shows_what_the_lane_says_while_it_reads_and_the_store_afterwards() -> None:
    world = World()
    ingest = world.join("ingest", "i-1")
    world.join("router", "r-1")
    lane = world.lane(*world.create("flights"))
    world.say(ingest, IngestReport(((ref("flights"), 10),)))
    link = GatewayLink("g-1", waiting=3, breaker="open", error="refused")
    reported = PartitionReport(ref("flights"), 10, 8, 0, Tally(parked=8), "stale", "4 are lost")
    said = LaneReport(
        partitions=(reported,), read=10, matched=10, delivered=0, filter_errors=0,
        links=(link,), letters="the disk is full",
    )  # fmt: skip
    world.say(lane, said)
    stored = Position(2, Tally(acknowledged=2))
    now = shown(world, stored)
    assert now.totals == api.Totals(appended=10, settled=8, waiting=2, parked=8)
    assert now.topics[0].totals == now.totals
    assert (now.topics[0].details[0].state, now.topics[0].details[0].reason) == (
        "stale",
        "4 are lost",
    )
    assert (now.lanes[0].links, now.lanes[0].letters) == ([link], "the disk is full")
    world.say(lane, to_coordinator.Goodbye())
    then = shown(world, stored)
    assert then.totals == api.Totals(appended=10, settled=2, waiting=8, acknowledged=2)
    assert then.topics[0].details[0].state == "healthy"


def test_what_a_lane_said_of_a_partition_that_was_reset_since_does_not_count() -> None:
    world = World()
    world.join("ingest", "i-1")
    world.join("router", "r-1")
    owners = world.create("flights", 2)
    lane = world.lane(*owners)
    reports = tuple(PartitionReport(one.ref, 10, 10, 0, Tally(dead=10)) for one in owners)
    said = LaneReport(partitions=reports, read=20, matched=20, delivered=0, filter_errors=0)
    world.say(lane, said)
    world.apply(world.cluster.reset(ref("flights"), Reset(0), world.now_ms))
    world.say(lane, to_coordinator.Released((owners[0],)))
    details = shown(world, Position(0, Tally(dead=10), redeliver_to=10)).topics[0].details
    assert [one.settled for one in details] == [0, 10]
