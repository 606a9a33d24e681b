"""Several partitions as one sequence by time, compared with a naive one made of all records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.browsing.cursor import Direction
from headgate.decide.browsing.merging import Merge
from headgate.model.browse_api import MissingRecords
from headgate.model.event import Record


def record(partition: int, seq: int, time_ms: int, size: int = 2) -> Record:
    document = b"{" + b" " * (size - 2) + b"}"
    return Record(
        "t", partition, seq, 1, f"{partition}-{seq}", None, "", "insert", document, None, None,
        time_ms,
    )  # fmt: skip


class Corrupt(Exception):
    pass


class Log:
    """Reads as a log does: up to a corrupt record, and no more than `at_once` of large ones."""

    def __init__(self, records: Sequence[Record], corrupt: frozenset[int], at_once: int) -> None:
        self.records = [*records]
        self.corrupt = corrupt
        self.at_once = at_once

    @property
    def head(self) -> int:
        return self.records[-1].seq if self.records else 0

    def read(self, after_seq: int, limit: int) -> list[Record]:
        there = [one for one in self.records if one.seq > after_seq][: min(limit, self.at_once)]
        if there and there[0].seq in self.corrupt:
            raise Corrupt(there[0].seq)
        ends = (at for at, one in enumerate(there) if one.seq in self.corrupt)
        return there[: next(ends, len(there))]


def merged(
    logs: dict[int, Log],
    direction: Direction,
    at: dict[int, int],
    *,
    most: int = 1_000_000,
    leaving: bool = False,
) -> tuple[list[Record | MissingRecords], Merge]:
    ends = {p: log.head if direction == "forward" else 1 for p, log in logs.items()}
    merge = Merge(at, ends, direction)
    found: list[Record | MissingRecords] = []
    while len(found) < most:
        if (read := merge.next_read()) is not None:
            if leaving and merge.leave_out():
                continue
            try:
                merge.brought(read, logs[read.partition].read(read.after_seq, read.limit))
            except Corrupt as error:
                merge.corrupt(read, error.args[0])
            continue
        item = merge.pop()
        if item is None:
            break
        found.append(item)
    return found, merge


def begin(logs: dict[int, Log], direction: Direction) -> dict[int, int]:
    return {p: 0 if direction == "forward" else log.head + 1 for p, log in logs.items()}


seqs = st.sets(st.integers(1, 60), max_size=40)


@st.composite
def partitions(draw: st.DrawFn) -> dict[int, Log]:
    logs: dict[int, Log] = {}
    for number in range(draw(st.integers(1, 4))):
        time_ms, records = 0, []
        for seq in sorted(draw(seqs)):
            time_ms += draw(st.integers(0, 5))
            records.append(record(number, seq, time_ms))
        corrupt = draw(st.frozensets(st.integers(1, 60), max_size=3))
        logs[number] = Log(records, corrupt, draw(st.sampled_from([1, 2, 7, 1_000])))
    return logs


@given(partitions(), st.sampled_from(["forward", "backward"]))
def test_it_has_every_record_once_in_order(logs: dict[int, Log], direction: Direction) -> None:
    found, merge = merged(logs, direction, begin(logs, direction))
    shown = [one for one in found if isinstance(one, Record)]
    for number, log in logs.items():
        mine = [one.seq for one in shown if one.partition == number]
        there = [one.seq for one in log.records if one.seq not in log.corrupt]
        assert mine == (there if direction == "forward" else there[::-1])
    times = [one.time_ms for one in shown]
    assert times == sorted(times, reverse=direction == "backward")
    assert merge.buffered_bytes == 0
    assert not merge.has_more


@given(partitions(), st.sampled_from(["forward", "backward"]))
def test_it_says_of_every_seq_up_to_the_head_what_became_of_it(
    logs: dict[int, Log], direction: Direction
) -> None:
    found, _ = merged(logs, direction, begin(logs, direction))
    for number, log in logs.items():
        shown = {one.seq for one in found if isinstance(one, Record) and one.partition == number}
        missing = [
            (seq, one.why)
            for one in found
            if isinstance(one, MissingRecords) and one.partition == number
            for seq in range(one.first, one.last + 1)
        ]
        assert sorted([*shown, *(seq for seq, _ in missing)]) == [*range(1, log.head + 1)]
        there = {one.seq for one in log.records}
        for seq, why in missing:
            assert why == ("corrupt" if seq in there else "gone")


@given(partitions(), st.sampled_from(["forward", "backward"]), st.integers(1, 9))
def test_in_pages_it_is_the_same(logs: dict[int, Log], direction: Direction, most: int) -> None:
    whole, _ = merged(logs, direction, begin(logs, direction))
    at, pages = begin(logs, direction), list[Record]()
    for _ in range(300):
        found, merge = merged(logs, direction, at, most=most)
        pages += [one for one in found if isinstance(one, Record)]
        at = merge.at
        if not merge.has_more:
            break
    assert [(one.partition, one.seq) for one in pages] == [
        (one.partition, one.seq) for one in whole if isinstance(one, Record)
    ]


def test_partitions_that_are_left_out_have_the_next_turn_and_lose_nothing() -> None:
    logs = {p: Log([record(p, s, 10 * s + p) for s in (1, 2)], frozenset(), 9) for p in range(3)}
    found, merge = merged(logs, "forward", begin(logs, "forward"), leaving=True)
    assert [one.partition for one in found if isinstance(one, Record)] == [0, 0]
    assert (merge.turn, merge.at, merge.has_more) == (1, {0: 2, 1: 0, 2: 0}, True)
    again = Merge(merge.at, {0: 2, 1: 2, 2: 2}, "forward", turn=merge.turn)
    read = again.next_read()
    assert read is not None
    assert read.partition == 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_waits_is_counted_until_it_is_taken(direction: Direction) -> None:
    log = Log([record(0, seq, seq, size=1_000) for seq in range(1, 11)], frozenset(), 3)
    at, end = (0, 10) if direction == "forward" else (11, 1)
    merge = Merge({0: at}, {0: end}, direction)
    most = 0
    while merge.has_more:
        if (read := merge.next_read()) is not None:
            merge.brought(read, log.read(read.after_seq, read.limit))
        else:
            merge.pop()
        most = max(most, merge.buffered_bytes)
    assert 1_000 <= most <= 2 * 3 * 1_300  # backward, a read and what it joins
