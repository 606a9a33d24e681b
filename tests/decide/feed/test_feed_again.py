"""Redeliveries beside a queue: in their own order, and never behind what came after them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.feed.feed import Delivered, Feed, Read, WhenSlow
from headgate.decide.feed.queue import Item, Resync
from headgate.decide.feed.redeliveries import Redelivery
from tests.decide.feed.test_feed import READ_LIMIT, World, feed, history, live_feed, step
from tests.decide.feed.test_feed import partition as any_partition
from tests.decide.feed.test_feed_slow import live

Taken = Item[str] | Redelivery[str] | Resync


def all_of(subject: Feed[str]) -> list[Taken]:
    out = []
    while (item := subject.peek()) is not None:
        assert item == subject.take()
        out.append(item)
    return out


def again(*places: tuple[int, int]) -> list[Taken]:
    return [Redelivery(partition, seq, "again") for partition, seq in places]


def items(*places: tuple[int, int]) -> list[Taken]:
    return [Item(partition, seq, "x") for partition, seq in places]


def test_a_record_waits_for_the_redeliveries_that_came_before_it() -> None:
    subject = live_feed({0: 10}, capacity=12)
    subject.deliver(0, 11, "x")
    for seq in (9, 10, 11):
        subject.redeliver(0, seq, "again")
    subject.deliver(0, 12, "x")
    assert all_of(subject) == [
        *items((0, 11)), *again((0, 9), (0, 10), (0, 11)), *items((0, 12)),
    ]  # fmt: skip


def test_another_partition_takes_turns_with_them() -> None:
    subject = live_feed({0: 10, 1: 0}, capacity=12)
    for seq in (8, 9, 10):
        subject.redeliver(0, seq, "again")
    for seq in (1, 2, 3):
        subject.deliver(1, seq, "x")
    first, second, third = again((0, 8), (0, 9), (0, 10))
    assert all_of(subject) == [
        *items((1, 1)), first, *items((1, 2)), second, *items((1, 3)), third,
    ]  # fmt: skip


def test_redeliveries_that_come_later_dont_keep_a_record_any_longer() -> None:
    subject = live_feed({0: 10}, capacity=12)
    subject.redeliver(0, 9, "again")
    subject.deliver(0, 11, "x")
    subject.redeliver(0, 10, "again")
    assert all_of(subject) == [*again((0, 9)), *items((0, 11)), *again((0, 10))]


def test_nothing_is_written_past_redeliveries_that_wait() -> None:
    subject = live_feed({0: 10}, capacity=12)
    assert subject.pass_through(0, 11)
    subject.redeliver(0, 10, "again")
    assert not subject.would_pass(0, 12)
    assert not subject.pass_through(0, 12)
    assert subject.sent() == {0: 11}
    subject.take()
    assert subject.pass_through(0, 12)


def test_what_is_read_from_the_log_waits_for_them_too() -> None:
    subject = feed({0: 10}, capacity=12)
    subject.release({0: 12})
    subject.redeliver(0, 9, "again")
    subject.redeliver(0, 10, "again")
    subject.replayed(Read(0, 10, READ_LIMIT), 12, [(11, "x"), (12, "x")])
    assert all_of(subject) == [*again((0, 9), (0, 10)), *items((0, 11), (0, 12))]


def test_what_is_said_about_lost_records_waits_for_them_too() -> None:
    subject = live_feed({0: 10}, capacity=12)
    subject.redeliver(0, 9, "again")
    subject.redeliver(0, 10, "again")
    subject.lost(0, 11, 14)
    assert all_of(subject) == [*again((0, 9), (0, 10)), Resync(0, 10, 15, "gap")]


def test_what_is_said_about_dropped_records_waits_for_them_too() -> None:
    subject = live({0: 10, 1: 0}, "drop_oldest", capacity=8)
    subject.redeliver(0, 9, "again")
    subject.redeliver(0, 10, "again")
    for seq in range(11, 21):
        subject.deliver(0, seq, "x")
    heard = all_of(subject)
    assert heard[:3] == [*again((0, 9), (0, 10)), Resync(0, 10, 13, "slow")]
    assert heard[3:] == items(*[(0, seq) for seq in range(13, 21)])


def test_one_that_waits_for_redeliveries_and_overflows_is_disconnected() -> None:
    subject = live({0: 0}, "disconnect", capacity=4)
    subject.redeliver(0, 1, "again")
    outcomes = [subject.deliver(0, seq, "x") for seq in range(2, 7)]
    assert outcomes == [*[Delivered.QUEUED] * 4, Delivered.OVERFLOW]


# --- simulation ----------------------------------------------------------------------------------

ROOM = 8
ROOM_AGAIN = ROOM // 4


class Closed(Exception):
    """The subscriber was too slow, and is disconnected."""


class Watched(Feed[str]):
    """Writes down what waits when something comes, and looks at it when that is taken."""

    def __init__(self, starts: dict[int, int], when_slow: WhenSlow) -> None:
        super().__init__(
            starts,
            capacity=ROOM,
            capacity_bytes=1_000,
            read_limit=READ_LIMIT,
            when_slow=when_slow,
        )
        self.waiting: list[Redelivery[str]] = []
        self.before: dict[tuple[int, int], list[Redelivery[str]]] = {}
        """Per place the redeliveries that came before it and waited then."""
        self.last: Taken | None = None
        """What was taken last, if there was something to take."""

    def deliver(self, partition: int, seq: int, value: str, *, since: int = 0) -> Delivered:
        outcome = super().deliver(partition, seq, value, since=since)
        if outcome is Delivered.OVERFLOW:
            raise Closed
        if outcome is Delivered.QUEUED:
            self._came(partition, seq)
        return outcome

    def replayed(self, read: Read, through_seq: int, matches: Sequence[tuple[int, str]]) -> None:
        super().replayed(read, through_seq, matches)
        for seq, _ in matches:
            self._came(read.partition, seq)

    def redeliver(self, partition: int, seq: int, value: str, mark: Hashable = None) -> None:
        super().redeliver(partition, seq, value, mark)
        # Each is another one, so that equal ones are told apart.
        self.waiting.append(Redelivery(partition, seq, value))

    def _came(self, partition: int, seq: int) -> None:
        self.before[partition, seq] = [one for one in self.waiting if one.partition == partition]

    def take(self) -> Taken | None:
        item = super().take()
        if isinstance(item, Redelivery):
            assert item == self.waiting[0], "in the order in which they came"
            assert not isinstance(self.last, Redelivery) or self._others_have_to_wait()
            self.waiting.pop(0)
        elif item is not None:
            seq = item.seq if isinstance(item, Item) else item.from_seq - 1
            assert not self._still_waits((item.partition, seq)), "it passes what came before it"
            assert not self.waiting or self.last is None or isinstance(self.last, Redelivery)
            for place in [one for one in self.before if one[0] == item.partition and one[1] <= seq]:
                del self.before[place]
        self.last = item
        return item

    def _others_have_to_wait(self) -> bool:
        """Why there are two redeliveries in a row."""
        others = len(self) - len(self.waiting) + 1
        return not others or any(self._still_waits(place) for place in self.before)

    def _still_waits(self, place: tuple[int, int]) -> bool:
        return any(mine is theirs for mine in self.before[place] for theirs in self.waiting)


@dataclass
class AgainWorld(World):
    """The same world, where an operator has records sent again."""

    left_out: dict[int, set[int]] = field(default_factory=dict)
    accepted: list[tuple[int, int]] = field(default_factory=list)
    redelivered: list[tuple[int, int]] = field(default_factory=list)

    def redeliver(self, partition: int, seq: int) -> None:
        if self.subject.takes_redeliveries:
            self.accepted.append((partition, seq))
            self.subject.redeliver(partition, seq, "again")

    def take(self) -> None:
        positions = self.subject.sent()
        match self.subject.take():
            case Item(partition, seq, _):
                self.out[partition].append(seq)
            case Redelivery(partition, seq, _):
                self.redelivered.append((partition, seq))
                assert self.subject.sent() == positions, "it is no position"
            case Resync(partition, after_seq, from_seq, _):
                self.left_out.setdefault(partition, set()).update(range(after_seq + 1, from_seq))


sent_again = st.tuples(st.just("redeliver"), any_partition, st.integers(1, 9))


@given(
    past=st.tuples(history, history),
    level=st.booleans(),
    when_slow=st.sampled_from(["park", "drop_oldest", "disconnect"]),
    steps=st.lists(step | sent_again | sent_again, min_size=20, max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_all_that_was_accepted_comes_in_order_and_nothing_passes_what_came_before_it(
    past: tuple[list[bool], list[bool]],
    level: bool,
    when_slow: WhenSlow,
    steps: list[tuple[object, ...]],
) -> None:
    """The oracle is what `Watched` wrote down. Nothing waits beyond the bounds, and both kinds take
    turns where one needn't wait for the other. `level`: it begins where the log ends."""
    log = {number: list(records) for number, records in enumerate(past)}
    heads = {number: len(records) for number, records in log.items()}
    begin = dict(heads) if level else dict.fromkeys(log, 0)
    subject = Watched(begin, when_slow)
    world = AgainWorld(
        begin, subject, log, cursor=heads, floor=dict(heads), out={number: [] for number in log}
    )
    world.adopt()
    world.release()
    try:
        for name, *arguments in steps:
            getattr(world, str(name))(*arguments)
            passing = [subject.would_pass(number, len(log[number]) + 1) for number in log]
            assert not any(passing) or not subject.waiting
            assert len(subject.waiting) <= ROOM_AGAIN
            assert len(subject) <= ROOM + len(log) + len(subject.waiting)
        world.settle()
    except Closed:
        assert when_slow == "disconnect"
        _check_order(world.out)
        assert world.redelivered == world.accepted[: len(world.redelivered)]
        return
    assert world.redelivered == world.accepted
    for number, expected in world.expected().items():
        missing = world.left_out.get(number, set())
        assert world.out[number] == [seq for seq in expected if seq not in missing]
    assert subject.live


def _check_order(out: Mapping[int, Sequence[int]]) -> None:
    assert all(first < second for seqs in out.values() for first, second in pairwise(seqs))
