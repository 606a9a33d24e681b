"""The state machine of one subscriber, against random interleavings and a naive oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.feed.feed import Delivered, Feed, Read
from headgate.decide.feed.queue import Item

CAPACITY = 3
READ_LIMIT = 2
PARTITIONS = 2


def feed(
    starts: dict[int, int], capacity: int = CAPACITY, capacity_bytes: int = 1_000
) -> Feed[str]:
    return Feed(starts, capacity=capacity, capacity_bytes=capacity_bytes, read_limit=READ_LIMIT)


def live_feed(starts: dict[int, int], **bounds: int) -> Feed[str]:
    made = feed(starts, **bounds)
    made.release(starts)
    return made


def taken(source: Feed[str]) -> list[tuple[int, int]]:
    out = []
    while (item := source.take()) is not None:
        assert isinstance(item, Item)
        out.append((item.partition, item.seq))
    return out


def test_live_delivery_is_queued_once_and_in_order() -> None:
    subject = live_feed({0: 5})
    assert subject.deliver(0, 5, "x") is Delivered.DUPLICATE
    assert subject.deliver(0, 7, "x") is Delivered.QUEUED
    assert subject.deliver(0, 7, "x") is Delivered.DUPLICATE
    assert subject.deliver(0, 6, "x") is Delivered.DUPLICATE
    assert subject.deliver(0, 9, "x") is Delivered.QUEUED
    assert taken(subject) == [(0, 7), (0, 9)]
    assert subject.next_read() is None


def test_held_subscriber_defers_everything_and_reads_nothing() -> None:
    subject = feed({0: 0})
    assert subject.deliver(0, 1, "x") is Delivered.DEFERRED
    assert subject.next_read() is None
    subject.release({0: 0})
    assert subject.catching_up
    assert subject.next_read() == Read(0, 0, READ_LIMIT)


def test_held_subscriber_is_not_catching_up_whatever_was_deferred() -> None:
    subject = feed({0: 0})
    subject.deliver(0, 1, "x")
    assert not subject.catching_up


def test_overflow_falls_back_to_the_log_after_the_last_queued_position() -> None:
    subject = live_feed({0: 0, 1: 0}, capacity=2)
    subject.deliver(0, 1, "x")
    subject.deliver(0, 4, "x")
    assert subject.deliver(0, 6, "x") is Delivered.DEFERRED
    assert subject.behind() == [0]
    assert subject.next_read() is None, "there is no room for what would be read"
    assert taken(subject) == [(0, 1), (0, 4)]
    assert subject.next_read() == Read(0, 4, 1)
    assert subject.deliver(1, 1, "x") is Delivered.QUEUED, "the other partition is still live"


def test_queue_is_bounded_in_bytes_too_but_a_large_item_passes_alone() -> None:
    subject = live_feed({0: 0}, capacity=10, capacity_bytes=4)
    assert subject.deliver(0, 1, "x" * 100) is Delivered.QUEUED
    assert subject.deliver(0, 2, "x") is Delivered.DEFERRED
    assert taken(subject) == [(0, 1)]


def test_switch_to_live_waits_for_what_was_deferred_during_the_read() -> None:
    subject = feed({0: 0})
    subject.release({0: 2})
    read = subject.next_read()
    assert read is not None
    assert subject.deliver(0, 3, "x") is Delivered.DEFERRED
    subject.replayed(read, 2, [(1, "a"), (2, "b")])
    assert subject.behind() == [0]
    assert taken(subject) == [(0, 1), (0, 2)]
    second = subject.next_read()
    assert second == Read(0, 2, READ_LIMIT)
    subject.replayed(second, 3, [(3, "c")])
    assert subject.live
    assert subject.deliver(0, 3, "x") is Delivered.DUPLICATE
    assert subject.deliver(0, 4, "x") is Delivered.QUEUED


def test_partitions_take_turns_while_catching_up() -> None:
    subject = feed({0: 0, 1: 0, 2: 0}, capacity=100)
    subject.release({0: 50, 1: 50, 2: 50})
    order = []
    for _ in range(6):
        read = subject.next_read()
        assert read is not None
        order.append(read.partition)
        subject.replayed(read, read.after_seq + 1, [])
    assert order == [0, 1, 2, 0, 1, 2]


def test_sent_positions_include_what_did_not_match_once_nothing_waits() -> None:
    subject = feed({0: 0, 1: 7})
    subject.release({0: 9, 1: 7})
    read = subject.next_read()
    assert read is not None
    subject.replayed(read, 9, [(2, "x"), (3, "x")])
    assert subject.sent() == {0: 0, 1: 7}
    subject.take()
    assert subject.sent() == {0: 2, 1: 7}
    subject.take()
    assert subject.sent() == {0: 9, 1: 7}


def test_unknown_partition_starts_at_its_beginning() -> None:
    subject = live_feed({0: 0})
    assert subject.deliver(4, 1, "x") is Delivered.QUEUED
    assert subject.sent() == {0: 0, 4: 0}


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda s, r: s.replayed(r, 0, []), id="goes backwards"),
        pytest.param(lambda s, r: s.replayed(Read(0, 0, 9), 3, []), id="another read"),
        pytest.param(
            lambda s, r: s.replayed(r, 9, [(n, "x") for n in range(2, 9)]), id="more than asked for"
        ),
    ],
)
def test_wrong_replay_is_refused_and_changes_nothing(
    break_it: Callable[[Feed[str], Read], None],
) -> None:
    subject = feed({0: 1})
    subject.release({0: 3})
    read = subject.next_read()
    assert read is not None
    with pytest.raises(ValueError, match="Read"):
        break_it(subject, read)
    assert subject.behind() == [0]
    subject.replayed(read, 3, [])
    assert subject.live


# --- simulation ----------------------------------------------------------------------------------


@dataclass
class World:
    """A log, lanes that deliver at least once, and one subscriber; `matching` is the filter."""

    starts: dict[int, int]
    subject: Feed[str]
    log: dict[int, list[bool]] = field(default_factory=dict)
    cursor: dict[int, int] = field(default_factory=dict)
    floor: dict[int, int] = field(default_factory=dict)
    adopted: bool = False
    released: bool = False
    writable: bool = False
    """Whether what is live and needn't wait goes out at once."""
    pending: tuple[Read, int, list[int]] | None = None
    out: dict[int, list[int]] = field(default_factory=dict)

    def heads(self) -> dict[int, int]:
        return {partition: len(records) for partition, records in self.log.items()}

    def append(self, partition: int, matches: bool) -> None:
        self.log[partition].append(matches)

    def burst(self, partition: int, count: int) -> None:
        for _ in range(count):
            self.append(partition, matches=True)
        self.lane(partition, count)

    def lane(self, partition: int, count: int) -> None:
        """The lane reads records; they match only with a filter it has adopted."""
        for _ in range(count):
            seq = self.cursor[partition] + 1
            if seq > len(self.log[partition]):
                return
            self.cursor[partition] = seq
            if self.adopted and self.log[partition][seq - 1]:
                if self.writable and self.subject.pass_through(partition, seq):
                    self.out[partition].append(seq)
                else:
                    self.subject.deliver(partition, seq, "x")

    def lane_restarts(self, partition: int, back: int) -> None:
        self.cursor[partition] = max(self.floor[partition], self.cursor[partition] - back)

    def adopt(self) -> None:
        if not self.adopted:
            self.adopted = True
            self.floor = dict(self.cursor)

    def release(self) -> None:
        """The gateway hears of the adoption, at once or later."""
        if self.adopted and not self.released:
            self.released = True
            self.subject.release(self.heads())

    def outage(self) -> None:
        """The lanes settled records without us; the gateway holds until they have adopted us."""
        if self.released:
            self.cursor = self.heads()
            self.floor = self.heads()
            self.subject.hold()
            self.released = False

    def turn(self) -> None:
        self.writable = not self.writable

    def start_read(self) -> None:
        if self.pending is None and (read := self.subject.next_read()) is not None:
            records = self.log[read.partition][read.after_seq :][: read.limit]
            seqs = [read.after_seq + 1 + index for index, match in enumerate(records) if match]
            self.pending = (read, read.after_seq + len(records), seqs)

    def finish_read(self) -> None:
        if self.pending is not None:
            read, through, seqs = self.pending
            self.pending = None
            self.subject.replayed(read, through, [(seq, "x") for seq in seqs])

    def take(self) -> None:
        if (item := self.subject.take()) is not None:
            assert isinstance(item, Item)
            self.out[item.partition].append(item.seq)

    def settle(self) -> None:
        """Let everybody finish; bounded, because every round moves something forward."""
        self.adopt()
        self.release()
        for _ in range(10 * sum(self.heads().values()) + 20):
            if self.cursor == self.heads() and self.subject.live and not len(self.subject):
                break
            for partition in self.log:
                self.lane(partition, 1)
            self.finish_read()
            self.take()
            self.start_read()
        while len(self.subject):
            self.take()

    def expected(self) -> dict[int, list[int]]:
        return {
            partition: [
                seq
                for seq, matches in enumerate(records, start=1)
                if matches and seq > self.starts[partition]
            ]
            for partition, records in self.log.items()
        }


partition = st.integers(0, PARTITIONS - 1)
step = st.one_of(
    st.tuples(st.just("append"), partition, st.booleans()),
    st.tuples(st.just("burst"), partition, st.integers(1, 4)),
    st.tuples(st.just("lane"), partition, st.integers(1, 4)),
    st.tuples(st.just("lane_restarts"), partition, st.integers(1, 6)),
    st.tuples(st.just("adopt")),
    st.tuples(st.just("release")),
    st.tuples(st.just("outage")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("start_read")),
    st.tuples(st.just("finish_read")),
    st.tuples(st.just("take")),
)
history = st.lists(st.booleans(), max_size=6)


@given(
    past=st.tuples(history, history),
    starts=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    adopted_first=st.booleans(),
    steps=st.lists(step, max_size=60),
)
@settings(max_examples=500, deadline=None)
def test_every_matching_record_after_the_start_comes_out_once_and_in_order(
    past: tuple[list[bool], list[bool]],
    starts: tuple[int, int],
    adopted_first: bool,
    steps: list[tuple[object, ...]],
) -> None:
    log = {number: list(records) for number, records in enumerate(past)}
    begin = {number: min(start, len(log[number])) for number, start in enumerate(starts)}
    world = World(
        begin,
        feed(begin),
        log,
        cursor={number: len(records) for number, records in log.items()},
        floor={number: len(records) for number, records in log.items()},
        out={number: [] for number in log},
    )
    if adopted_first:
        world.adopt()
        world.release()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
        assert len(world.subject) <= CAPACITY
    world.settle()
    assert world.out == world.expected()
    assert world.subject.live
    assert all(
        world.subject.sent()[number] >= (world.out[number] or [0])[-1] for number in world.log
    )
