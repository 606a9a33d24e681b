"""Holes in what can be read: found, said, and over when everybody knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.gaps import Gap, dense, found, notice, skipped
from headgate.model.delivery import DeliveryBatch
from headgate.model.event import PartitionRef, Record
from headgate.model.position import Position

REF = PartitionRef("flights", 3)
MAX_GAP_MS = 300_000


@pytest.mark.parametrize(
    ("read", "following", "expected"),
    [
        pytest.param((0, 0), (1, 5), None, id="the first record of all"),
        pytest.param((7, 1_000), (8, 1_001), None, id="the next one"),
        pytest.param((7, 1_000), (8, 99_999_999), None, id="a quiet log isn't a gap"),
        pytest.param((7, 1_000), (7, 1_000), None, id="the same one again"),
        pytest.param((7, 1_000), (9, 2_000), Gap(8, 8, is_small=True), id="one is missing"),
        pytest.param((7, 1_000), (50, 301_000), Gap(8, 49, is_small=True), id="as long as may be"),
        pytest.param((7, 1_000), (9, 301_001), Gap(8, 8), id="few but long"),
        pytest.param((7, 0), (9, 10), Gap(8, 8), id="nobody knows how long"),
        pytest.param((0, 0), (500, 10), Gap(1, 499), id="the beginning is gone"),
    ],
)
def test_a_gap_is_a_hole_in_seq_and_small_by_the_time_it_spans(
    read: tuple[int, int], following: tuple[int, int], expected: Gap | None
) -> None:
    gap = found(
        read_seq=read[0],
        read_ms=read[1],
        next_seq=following[0],
        next_ms=following[1],
        max_gap_ms=MAX_GAP_MS,
    )
    assert gap == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        pytest.param(Position(4), None, id="nothing to skip"),
        pytest.param(Position(4, skip_to=9), Gap(5, 9, on_purpose=True), id="five records"),
        pytest.param(Position(9, skip_to=9), None, id="done"),
        pytest.param(Position(12, skip_to=9), None, id="done long ago"),
    ],
)
def test_what_an_operator_skips_is_a_gap_until_the_position_is_there(
    position: Position, expected: Gap | None
) -> None:
    assert skipped(position) == expected


def test_a_notice_stands_before_the_record_after_the_gap_and_survives_the_wire() -> None:
    made = notice(Gap(5, 9), REF, epoch=4, time_ms=77)
    assert (made.lost_from, made.seq, made.subscriptions, made.epoch) == (5, 9, (), 4)
    batch = msgspec.json.encode(DeliveryBatch("g", 1, 0, (made,)))
    [read] = msgspec.json.decode(batch, type=DeliveryBatch).deliveries
    assert (read.lost_from, read.seq, read.partition) == (5, 9, 3)


def record(seq: int) -> Record:
    return Record("flights", 3, seq, 1, f"e{seq}", None, "", "insert", b"{}", None, None, 0)


@given(st.sets(st.integers(1, 30)))
def test_records_are_taken_up_to_the_first_hole(seqs: set[int]) -> None:
    records = [record(seq) for seq in sorted(seqs)]
    taken = [one.seq for one in dense(records)]
    expected: list[int] = []
    for seq in sorted(seqs):
        if expected and seq != expected[-1] + 1:
            break
        expected.append(seq)
    assert taken == expected
