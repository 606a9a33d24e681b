"""Cutting up a read: nothing twice, nothing left out, nobody starved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.log.ranges import SeqRange, advance, share, split

partitions = st.integers(0, 5)
positions = st.dictionaries(partitions, st.integers(1, 40))
waiting = st.dictionaries(partitions, st.integers(0, 30))


@given(start=positions, end=positions, rows=st.integers(1, 15))
def test_ranges_cover_every_seq_once_and_in_order(
    start: dict[int, int], end: dict[int, int], rows: int
) -> None:
    ranges = split(start, end, rows=rows)
    covered = [
        (one.partition, seq)
        for one in ranges
        for seq in range(one.after_seq + 1, one.up_to_seq + 1)
    ]
    assert covered == [
        (partition, seq)
        for partition in sorted(end)
        for seq in range(start.get(partition, 1), end[partition])
    ]
    assert all(0 < one.up_to_seq - one.after_seq <= rows for one in ranges)


def test_a_range_ends_where_the_next_begins() -> None:
    assert split({0: 3}, {0: 8, 1: 2}, rows=2) == [
        SeqRange(0, 2, 4),
        SeqRange(0, 4, 6),
        SeqRange(0, 6, 7),
        SeqRange(1, 0, 1),
    ]


@given(waiting=waiting, limit=st.integers(1, 100), turn=st.integers(0, 100))
def test_a_share_is_full_fair_and_within_the_limit(
    waiting: dict[int, int], limit: int, turn: int
) -> None:
    granted = share(waiting, limit=limit, turn=turn)
    assert sum(granted.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= granted[one] <= waiting[one] for one in waiting)
    # Whoever was not served in full got no less than anybody else, give or take one record.
    short = [granted[one] for one in waiting if granted[one] < waiting[one]]
    assert all(granted[one] - 1 <= least for one in waiting for least in short)


@given(start=positions, available=positions, limit=st.none() | st.integers(1, 20))
def test_batches_go_forward_until_everything_is_read(
    start: dict[int, int], available: dict[int, int], limit: int | None
) -> None:
    goal = {
        partition: max(start.get(partition, 1), available.get(partition, 1))
        for partition in start | available
    }
    at = start
    # Each batch but the last takes a record or more, and there are fewer than 300.
    for _ in range(300):
        reached = advance(at, available, limit=limit)
        assert all(reached[one] >= at.get(one, 1) for one in reached)
        if reached == at:
            break
        read = sum(reached[one] - at.get(one, 1) for one in reached)
        assert limit is None or read <= limit
        at = reached
    assert at == goal


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_below_the_number_of_partitions_starves_none(limit: int) -> None:
    at = {0: 1, 1: 1, 2: 1, 3: 1}
    endless = dict.fromkeys(at, 10**9)
    for _ in range(8):
        at = advance(at, endless, limit=limit)
    assert min(at.values()) > 1
    assert max(at.values()) - min(at.values()) <= 1
