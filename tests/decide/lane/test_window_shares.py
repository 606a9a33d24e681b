"""Lanes of a window: every partition once, as evenly as numbers allow; and when it is overdue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.lane.window_shares import OpenWindow, Patience, overdue_s, plan_lanes
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner


@given(partitions=st.integers(0, 50), slots=st.integers(1, 12), order=st.randoms())
def test_every_partition_is_in_exactly_one_lane(partitions: int, slots: int, order: object) -> None:
    owners = [Owner(PartitionRef("t", n), "router-1", 1) for n in range(partitions)]
    shuffled = list(owners)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    lanes = plan_lanes(shuffled, slots)
    assert sorted((o for lane in lanes for o in lane), key=lambda o: o.ref) == owners
    assert len(lanes) == min(partitions, slots)
    sizes = [len(lane) for lane in lanes]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert lanes == plan_lanes(owners, slots)


# --- overdue -------------------------------------------------------------------------------------

PATIENCE = Patience(start_s=60.0, tallies_s=10.0)
PLANNED_S, LENGTH_S = 1_000.0, 120.0
AN_HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("told_s", "connected_s", "expected"),
    [
        pytest.param(None, 5.0, 1_180.0, id="by time, and what a start takes"),
        pytest.param(1_030.0, 5.0, 1_040.0, id="told to end"),
        pytest.param(1_175.0, 5.0, 1_180.0, id="told so late that its time is up before"),
        pytest.param(None, None, None, id="cut off"),
        pytest.param(1_030.0, None, None, id="told to end, then cut off"),
        pytest.param(None, 1_050.0, 1_180.0, id="cut off and back within its time"),
        pytest.param(None, 1_110.0 + AN_HOUR_S, 1_170.0 + AN_HOUR_S, id="back after an hour"),
        pytest.param(1_030.0, 1_050.0, 1_180.0, id="told before it was cut off: perhaps unheard"),
        pytest.param(1_060.0, 1_050.0, 1_070.0, id="told again when it is back"),
    ],
)
def test_a_window_is_overdue_only_for_a_router_that_is_connected(
    told_s: float | None, connected_s: float | None, expected: float | None
) -> None:
    window = OpenWindow(PLANNED_S, LENGTH_S, told_s)
    assert overdue_s(window, connected_s=connected_s, patience=PATIENCE) == expected


instants = st.floats(0, 10_000)


@given(planned_s=instants, length_s=instants, told_s=st.none() | instants, connected_s=instants)
def test_lanes_always_get_the_time_to_give_their_tallies(
    planned_s: float, length_s: float, told_s: float | None, connected_s: float
) -> None:
    window = OpenWindow(planned_s, length_s, told_s)
    overdue = overdue_s(window, connected_s=connected_s, patience=PATIENCE)
    assert overdue is not None
    assert overdue >= connected_s + PATIENCE.tallies_s, "they may have been cut off as well"
    early = told_s is not None and overdue == told_s + PATIENCE.tallies_s
    assert early or overdue >= planned_s + length_s + PATIENCE.start_s
