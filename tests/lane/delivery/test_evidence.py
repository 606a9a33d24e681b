"""What the lanes of a process remember of which records they have read themselves."""

from __future__ import annotations

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.lane.delivery.evidence import STRETCHES_MAX, LaneEvidence
from headgate.model.event import PartitionRef

REF, OTHER = PartitionRef("flights", 0), PartitionRef("flights", 1)


def evidence() -> LaneEvidence:
    return LaneEvidence(size=100, age_s=60.0, machine=ScriptedMachine())


def test_what_a_lane_has_read_is_known_while_it_reads_and_afterwards() -> None:
    made, lane = evidence(), object()
    made.begins(lane, 10)
    assert [made.has_read(REF, seq, lane, 20) for seq in (10, 11, 20, 21)] == [0, 1, 1, 0]
    made.ends(lane, REF, 20)
    assert [made.has_read(REF, seq, None, 0) for seq in (10, 11, 20, 21)] == [0, 1, 1, 0]
    assert not made.has_read(OTHER, 11, None, 0)


def test_what_others_read_in_between_is_not_theirs() -> None:
    made, first, second = evidence(), object(), object()
    made.begins(first, 0)
    made.ends(first, REF, 100)
    made.begins(second, 200)
    assert [made.has_read(REF, seq, second, 300) for seq in (100, 101, 200, 201)] == [1, 0, 0, 1]


def test_a_successor_may_begin_before_its_predecessor_ends() -> None:
    made, former, present = evidence(), object(), object()
    made.begins(former, 0)
    made.begins(present, 90)
    made.ends(former, REF, 100)
    assert [made.has_read(REF, seq, present, 150) for seq in (1, 100, 150, 151)] == [1, 1, 1, 0]


def test_it_is_bounded() -> None:
    made = evidence()
    for number in range(10 * STRETCHES_MAX):
        lane = object()
        made.begins(lane, 10 * number)
        made.ends(lane, REF, 10 * number + 5)
        made.ends(lane, REF, 10 * number + 7)
    assert not made.has_read(REF, 1, None, 0)
    assert made.has_read(REF, 10 * (10 * STRETCHES_MAX - 1) + 5, None, 0)
    assert not made.has_read(REF, 10 * (10 * STRETCHES_MAX - 1) + 6, None, 0)
    assert len(made._stretches[REF]) == STRETCHES_MAX
    assert made._begun == {}
