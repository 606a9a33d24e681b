"""What lanes report as totals since their start becomes sums that only grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.coordination.lanes.lane_totals import LANES_MAX, LaneTotals
from headgate.decide.coordination.lanes.lanes import Lanes
from headgate.decide.operations.latencies import Stopwatch
from headgate.model.control.reports import GatewayLink, LaneReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner


def hello(*, lane: int = 0, window: int = 1, attempt: int = 0, revision: int = 0) -> Hello:
    return Hello(
        role="lane",
        node_id="router-1",
        incarnation="a",
        lane=lane,
        window=window,
        attempt=attempt,
        revision=revision,
    )


def report(read: int, *links: GatewayLink, took: tuple[float, ...] = ()) -> LaneReport:
    watch = Stopwatch()
    for one in took:
        watch.took(one)
    return LaneReport(
        partitions=(),
        read=read,
        matched=read,
        delivered=read,
        filter_errors=0,
        links=links,
        routing=watch.so_far(),
    )


def test_a_lane_that_starts_again_begins_at_zero_and_the_sum_goes_on() -> None:
    totals = LaneTotals()
    totals.heard(hello(), report(10))
    totals.heard(hello(), report(25))
    totals.heard(hello(attempt=1), report(3))
    totals.heard(hello(window=2), report(4))
    totals.heard(hello(), report(26))  # it lingers until its successor has taken over
    assert totals.routers["router-1"].counts["read"] == 25 + 3 + 4 + 1


def test_what_a_lane_did_before_this_coordinator_led_counts_elsewhere() -> None:
    totals = LaneTotals()
    totals.heard(hello(revision=7), report(1_000, GatewayLink("g", sent=50)))
    totals.heard(hello(revision=7), report(1_010, GatewayLink("g", sent=52)))
    assert totals.routers["router-1"].counts["read"] == 10
    assert totals.gateways["g"].counts["sent"] == 2


def test_a_broken_stream_counts_nothing_twice() -> None:
    totals = LaneTotals()
    totals.heard(hello(), report(10))
    totals.heard(hello(revision=3), report(12))
    assert totals.routers["router-1"].counts["read"] == 12


def test_links_of_all_lanes_add_up_by_gateway() -> None:
    totals = LaneTotals()
    totals.heard(hello(lane=0), report(1, GatewayLink("g", sent=2, hard=1), GatewayLink("h")))
    totals.heard(hello(lane=1), report(1, GatewayLink("g", sent=3, dead=4)))
    sums = totals.gateways["g"].counts
    assert (sums["sent"], sums["hard"], sums["dead"]) == (5, 1, 4)
    assert set(totals.gateways) == {"g", "h"}


def test_latencies_add_up_too() -> None:
    totals = LaneTotals()
    totals.heard(hello(), report(1, took=(0.01,)))
    totals.heard(hello(), report(2, took=(0.01, 0.02)))
    totals.heard(hello(window=2), report(1, took=(4.0,)))
    assert sum(totals.routers["router-1"].latencies["routing"].counts) == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=60))
def test_the_sum_is_what_all_lanes_did(steps: list[tuple[int, int]]) -> None:
    totals, done = LaneTotals(), [0, 0, 0]
    for lane, more in steps:
        done[lane] += more
        totals.heard(hello(lane=lane), report(done[lane]))
    if steps:
        assert totals.routers["router-1"].counts["read"] == sum(done)


def test_lanes_that_are_long_gone_are_forgotten() -> None:
    totals = LaneTotals()
    for window in range(LANES_MAX + 10):
        totals.heard(hello(window=window), report(1))
    assert len(totals._last) == LANES_MAX
    assert totals.routers["router-1"].counts["read"] == LANES_MAX + 10


# --- restarts ------------------------------------------------------------------------------------

REF = PartitionRef("flights", 0)
OWNS = (Owner(REF, "router-1", 1),)


def begin(lanes: Lanes, session: int, said: Hello) -> None:
    lanes.start(session, said, OWNS, adopted=0, now_ms=0)
    lanes.claim(session, OWNS, now_ms=0)


def lane_hello(**changes: int) -> Hello:
    made = hello(**changes)
    return Hello(
        role="lane",
        node_id="router-1",
        incarnation="a",
        window=made.window,
        attempt=made.attempt,
        owns=OWNS,
    )


def test_a_lost_lane_that_is_run_again_is_a_restart() -> None:
    lanes = Lanes()
    begin(lanes, 1, lane_hello())
    lanes.lose(1, now_ms=1)
    begin(lanes, 2, lane_hello(attempt=1))
    assert lanes.restarts == {REF: 1}


def test_a_new_epoch_after_a_loss_is_a_restart() -> None:
    lanes = Lanes()
    begin(lanes, 1, lane_hello())
    lanes.lose(1, now_ms=1)
    lanes.fence(OWNS)
    begin(lanes, 2, lane_hello(window=2))
    assert lanes.restarts == {REF: 1}


def test_a_change_of_windows_and_a_broken_stream_are_none() -> None:
    lanes = Lanes()
    begin(lanes, 1, lane_hello())
    begin(lanes, 2, lane_hello(window=2))
    lanes.lose(2, now_ms=1)
    begin(lanes, 3, lane_hello(window=2))
    lanes.end(3, now_ms=2)
    begin(lanes, 4, lane_hello(window=3))
    assert lanes.restarts == {}


def test_a_coordinator_that_has_just_begun_counts_none() -> None:
    lanes = Lanes()
    lanes.suspect([REF], now_ms=0)
    begin(lanes, 1, lane_hello())
    assert lanes.restarts == {}
