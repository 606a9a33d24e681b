"""Reading a topic that is repartitioned meanwhile, with nothing to go by but its records. The
oracle knows keys, and in which order their records were appended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count, repeat
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.log.ranges import advance, split
from headgate.decide.log.versions import CompleteStretch, Versions

KEYS = 4
GROWS = 0.25
"""How likely it is between two looks."""


class Kept(NamedTuple):
    key: int
    version: int
    number: int
    """Its place among all that was appended."""


class Growing:
    """A topic that grows before each look at it, by as much as `paces` says. A key is its own hash;
    a partition of a former topic of this name begins behind that one's end; -1 for a key leaves out
    a seq."""

    def __init__(
        self, counts: list[int], keys: list[list[int]], bases: list[int], paces: Iterator[int]
    ) -> None:
        self.records: defaultdict[int, dict[int, Kept]] = defaultdict(dict)
        self.heads = dict(enumerate(bases))
        self.stored: set[int] = set()
        self.appended: defaultdict[int, list[int]] = defaultdict(list)
        self._to_come = self._history(counts, keys)
        self._paces = paces
        next(self._to_come)

    def _history(self, counts: list[int], keys: list[list[int]]) -> Iterator[None]:
        numbers = count()
        for version, (partitions, added) in enumerate(zip(counts, keys, strict=True), 1):
            self.stored |= set(range(partitions))
            yield
            for key in added:
                partition, number = key % partitions, next(numbers)
                self.heads[partition] += 1
                if key >= 0:
                    self.records[partition][self.heads[partition]] = Kept(key, version, number)
                    self.appended[key].append(number)
                yield

    def grow(self, events: int) -> bool:
        """Is there more to come?"""
        return all(next(self._to_come, self) is None for _ in range(events))

    def extents(self) -> dict[int, CompleteStretch]:
        found: dict[int, CompleteStretch] = {}
        for partition in sorted(self.stored):
            self.grow(next(self._paces, 0))
            head = self.heads[partition]
            found[partition] = CompleteStretch(min(self.records[partition], default=head + 1), head)
        return found

    def version_at(self, partition: int, seq: int) -> int | None:
        self.grow(next(self._paces, 0))
        return next((one.version for at, one in self.records[partition].items() if at >= seq), None)

    def between(self, begin: Mapping[int, int], end: Mapping[int, int]) -> list[Kept]:
        return [
            self.records[one.partition][seq]
            for one in split(begin, end, rows=2)
            for seq in range(one.after_seq + 1, one.up_to_seq + 1)
            if seq in self.records[one.partition]
        ]


class Reader:
    """What it has read so far: `batches`, up to `positions`."""

    def __init__(self, log: Growing) -> None:
        self.log = log
        self.positions: dict[int, int] = {}
        self.batches: list[list[Kept]] = []

    def run(self, *, most: int, limit: int | None, up_to_now: bool) -> None:
        """As a query from its start to its end."""
        versions = Versions(self.log)
        target = _ends(versions.complete()) if up_to_now else None
        for _ in range(most):
            found = versions.complete()
            begin = {one: there.earliest for one, there in found.items()} | self.positions
            ends = _ends(found)
            if target is not None:
                ends = {one: min(ends[one], target[one]) for one in target}
            reached = advance(begin, versions.same_version(begin, ends), limit=limit)
            self.batches.append(self.log.between(begin, reached))
            self.positions = reached
            if reached == begin:
                break
        else:
            return
        if target is not None:
            assert all(self.positions[one] >= end for one, end in target.items())

    def start_again(self) -> None:
        """With positions that were saved, and no checkpoint."""
        versions = Versions(self.log)
        found = versions.complete()
        since = versions.since(self.positions, found) if self.positions else {}
        self.positions = _ends(found) | since | self.positions if self.positions else {}


def _ends(found: Mapping[int, CompleteStretch]) -> dict[int, int]:
    return {one: there.head + 1 for one, there in found.items()}


def grown(chance: Random) -> Growing:
    versions = range(chance.randint(2, 8))
    counts = [chance.randint(1, 5) for _ in versions]
    keys = [[chance.randint(-1, KEYS - 1) for _ in range(chance.randint(0, 6))] for _ in versions]
    paces = (chance.randint(1, 6) if chance.random() < GROWS else 0 for _ in repeat(None))
    return Growing(counts, keys, [chance.randint(0, 3) for _ in range(5)], paces)


@settings(max_examples=400)
@given(st.integers(0, 2**32).map(Random))
def test_every_key_comes_once_and_in_order_and_no_batch_has_two_versions(chance: Random) -> None:
    log = grown(chance)
    reader = Reader(log)
    for _ in range(chance.randint(1, 9)):
        limit = chance.choice([None, 1, 2, 5])
        reader.run(most=chance.randint(1, 9), limit=limit, up_to_now=chance.random() < 0.3)
        if chance.random() < 0.3:
            reader.start_again()
    while log.grow(1):
        pass
    reader.run(most=1_000, limit=None, up_to_now=False)
    read: defaultdict[int, list[int]] = defaultdict(list)
    reached = 0
    for batch in reader.batches:
        assert len({one.version for one in batch}) <= 1
        for one in batch:
            assert one.version >= reached
            read[one.key].append(one.number)
            reached = one.version
    assert read == log.appended


def test_what_comes_while_it_is_looked_up_waits_for_its_predecessors() -> None:
    # Once 0:1 and 1:1 are there, and when partition 0 has been looked at, 0:2 comes, which is the
    # last of its version, and 1:2 of the next one.
    log = Growing([2, 2], [[0, 1, 0], [1]], [0, 0], iter([2, 0, 0, 0, 0, 3]))
    versions = Versions(log)
    assert versions.complete() == {0: CompleteStretch(1, 1), 1: CompleteStretch(1, 1)}
    found = versions.complete()
    assert found == {0: CompleteStretch(1, 2), 1: CompleteStretch(1, 2)}
    assert versions.same_version({0: 2, 1: 2}, _ends(found)) == {0: 3, 1: 2}
    assert versions.same_version({0: 3, 1: 2}, _ends(found)) == {0: 3, 1: 3}


def test_seqs_that_were_left_out_at_the_end_come_last_and_hold_nothing() -> None:
    log = Growing([2, 2], [[0, 1], [1, -1]], [0, 0], iter([9]))
    versions = Versions(log)
    found = versions.complete()
    assert found == {0: CompleteStretch(1, 1), 1: CompleteStretch(1, 3)}
    at = {0: 1, 1: 1}
    reached = [at := versions.same_version(at, _ends(found)) for _ in range(4)]
    assert reached == [{0: 2, 1: 2}, {0: 2, 1: 3}, {0: 2, 1: 4}, {0: 2, 1: 4}]


@pytest.mark.parametrize(
    ("saved", "begins"),
    [
        pytest.param({0: 2}, {2: 1, 3: 2}, id="in-the-first-version"),
        pytest.param({0: 2, 1: 3}, {2: 1, 3: 2}, id="partly-in-the-first"),
        pytest.param({0: 3}, {3: 2}, id="in-the-second"),
        pytest.param({0: 4}, {}, id="in-the-third"),
        pytest.param({0: 1}, {2: 1, 3: 2}, id="before-anything"),
    ],
)
def test_what_came_after_positions_were_saved_begins_with_its_first_record_since(
    saved: dict[int, int], begins: dict[int, int]
) -> None:
    """Partition 1 was there all along and has begun before; 2 came with the second version, and 3,
    of which a former topic of this name had a record, with the third."""
    log = Growing([2, 3, 4], [[0, 1], [3, 1, 2], [0, 1, 3]], [0, 0, 0, 1], iter([99]))
    versions = Versions(log)
    assert versions.since(saved, versions.complete()) == begins


def test_what_was_gone_when_positions_were_saved_and_came_back_begins_with_its_return() -> None:
    log = Growing([2, 1, 2], [[0, 1], [0, 1], [0, 1]], [0, 0], iter([99]))
    versions = Versions(log)
    assert versions.since({0: 4}, versions.complete()) == {1: 2}
    assert versions.since({0: 2}, versions.complete()) == {}
