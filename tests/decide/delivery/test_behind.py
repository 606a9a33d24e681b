"""Whose turn it is to send parked letters: everybody's, whoever else has letters all the time."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.decide.letters.parked_partitions import Behind
from headgate.model.event import PartitionRef

REFS = [PartitionRef("t", number) for number in range(4)]


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("halted", [(0,), (1,), (3,), (0, 1), (1, 2), (0, 3), (0, 1, 2, 3)])
def test_a_partition_that_halts_has_its_turn_between_others(
    halted: tuple[int, ...], limit: int
) -> None:
    behind = Behind(REFS)
    for number in halted:
        behind.halt(REFS[number], "it is too large")
    turns: Counter[PartitionRef] = Counter()
    for _ in range(8 * len(REFS)):
        step = behind.next(0.0, {}, limit=limit)
        turns.update(step.refs)
        if behind.halted.keys() & set(step.refs):
            assert (len(step.refs), step.each) == (1, 1), "nothing passes what it stands at"
    assert set(turns) == set(REFS)
    assert min(turns.values()) >= 8
