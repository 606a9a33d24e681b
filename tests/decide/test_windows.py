"""Lanes of a window: every partition once, as evenly as numbers allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.windows import plan_lanes
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
