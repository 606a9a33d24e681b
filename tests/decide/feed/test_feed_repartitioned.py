"""A subscriber of a topic that is repartitioned: whatever it gets live and whatever from the log,
every key comes in the order it was appended, once. The oracle knows keys, not partitions."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.feed.feed import Delivered, Feed
from headgate.decide.feed.queue import Item
from headgate.decide.log.lineage import begins_after, lineage_of
from headgate.model.topology import FormerVersion, Topic

KEYS = 6


class History:
    """A topic whose versions were made one after the other; a key is its own hash."""

    def __init__(self, counts: list[int], keys: list[list[int]]) -> None:
        self.records: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """Per partition what was appended: key and number."""
        self.appended: defaultdict[int, list[int]] = defaultdict(list)
        """Per key the numbers, in order."""
        self.topics: list[Topic] = []
        self.ends: list[dict[int, int]] = []
        numbers, topic = count(), Topic("t", counts[0])
        for partitions, added in zip(counts, keys, strict=True):
            if self.topics:
                topic = self._next(topic, partitions)
            for key in added:
                number = next(numbers)
                self.records[key % partitions].append((key, number))
                self.appended[key].append(number)
            self.topics.append(topic)

    def _next(self, topic: Topic, partitions: int) -> Topic:
        former = FormerVersion(
            topic.version,
            topic.after or (0,) * topic.partitions,
            tuple(len(self.records[number]) for number in range(topic.partitions)),
        )
        return Topic(
            "t",
            partitions,
            version=topic.version + 1,
            after=tuple(len(self.records[number]) for number in range(partitions)),
            former=(*topic.former, former),
        )


histories = st.integers(2, 4).flatmap(
    lambda versions: st.builds(
        History,
        st.lists(st.integers(1, 5), min_size=versions, max_size=versions),
        st.lists(
            st.lists(st.integers(0, KEYS - 1), max_size=12), min_size=versions, max_size=versions
        ),
    )
)


class Reader:
    """A feed, the lanes that deliver to it, and whoever reads it."""

    def __init__(
        self, history: History, *, wants: set[int], capacity: int, from_the_beginning: bool
    ) -> None:
        self.history = history
        self.wants = wants
        self.topic = history.topics[0] if not from_the_beginning else history.topics[-1]
        numbers = range(len(self.topic.all_refs()))
        self.feed: Feed[bytes] = Feed(
            dict.fromkeys(numbers, 0),
            capacity=capacity,
            capacity_bytes=10_000,
            read_limit=3,
            lineage=lineage_of(self.topic),
        )
        heads = {number: len(history.records[number]) for number in numbers}
        self.feed.release(heads if from_the_beginning else {})
        self.delivered = defaultdict[int, int](int, heads if from_the_beginning else {})
        self.taken: defaultdict[int, list[int]] = defaultdict(list)

    def adopt(self) -> None:
        """The next version becomes known, if there is one."""
        if self.topic.version < len(self.history.topics):
            newer = self.history.topics[self.topic.version]
            begins = begins_after(newer, self.topic.version)
            self.feed.repartitioned(lineage_of(newer), begins)
            self.topic = newer

    def deliver(self, partition: int) -> bool:
        """A lane delivers its next record, if it may and somebody wants it."""
        seq = self.delivered[partition] + 1
        if seq > len(self.history.records[partition]):
            return False
        lineage = lineage_of(self.history.topics[-1])
        version = lineage.version_of(partition, seq)
        before = lineage.before(version, partition)
        if version > self.topic.version or any(
            self.delivered[number] < last for number, last in before.items()
        ):
            return False
        self.delivered[partition] = seq
        if self.history.records[partition][seq - 1][0] not in self.wants:
            return True
        if self.feed.pass_through(partition, seq):
            self._took(partition, seq)
        else:
            assert self.feed.deliver(partition, seq, b"{}") is not Delivered.OVERFLOW
        return True

    def take(self) -> bool:
        item = self.feed.take()
        if item is None:
            return False
        assert isinstance(item, Item), item
        self._took(item.partition, item.seq)
        return True

    def _took(self, partition: int, seq: int) -> None:
        key, number = self.history.records[partition][seq - 1]
        self.taken[key].append(number)

    def read(self) -> bool:
        read = self.feed.next_read()
        if read is None:
            return False
        records = self.history.records[read.partition]
        through = min(read.after_seq + read.limit, len(records))
        seqs = range(read.after_seq + 1, through + 1)
        found = [(seq, b"{}") for seq in seqs if records[seq - 1][0] in self.wants]
        self.feed.replayed(read, through, found)
        return True


@given(
    histories,
    st.sets(st.integers(0, KEYS - 1), min_size=1),
    st.integers(1, 6),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=80),
)
def test_every_key_comes_in_order_and_once(
    history: History,
    wants: set[int],
    capacity: int,
    from_the_beginning: bool,
    steps: list[int],
) -> None:
    reader = Reader(history, wants=wants, capacity=capacity, from_the_beginning=from_the_beginning)
    for step in steps:
        match step:
            case 9:
                reader.adopt()
            case 8:
                reader.read()
            case 7 | 6:
                reader.take()
            case partition:
                reader.deliver(partition)
    for _ in history.topics:
        reader.adopt()
    going = True
    while going:
        went = [reader.deliver(partition) for partition in range(5)]
        going = any((*went, reader.take(), reader.read()))
    wanted = {key: numbers for key, numbers in history.appended.items() if key in wants}
    assert reader.taken == wanted


def test_what_lanes_went_on_without_at_the_end_of_a_version_is_late_and_not_lost() -> None:
    """A delivery of the next version doesn't say that nothing is left of the one before: two lanes
    may differ about who is subscribed, and the one that forgot it settles what the log still has
    for it. So what was shed at that end comes from the log as well, behind newer records."""
    former = FormerVersion(1, (0, 0), (1, 3))
    topic = Topic("t", 1, version=2, after=(1,), former=(former,))
    feed: Feed[bytes] = Feed(
        {0: 0, 1: 0}, capacity=9, capacity_bytes=10_000, read_limit=3, lineage=lineage_of(topic)
    )
    feed.release({})
    for partition, seq in ((0, 1), (1, 1), (0, 2)):
        assert feed.deliver(partition, seq, b"{}") is Delivered.QUEUED
    feed.hold()
    feed.release({0: 2, 1: 3})
    read = feed.next_read()
    assert read is not None
    feed.replayed(read, 3, [(2, b"{}"), (3, b"{}")])
    taken = [feed.take() for _ in range(5)]
    places = [(one.partition, one.seq) for one in taken if isinstance(one, Item)]
    assert places == [(0, 1), (1, 1), (0, 2), (1, 2), (1, 3)]


def two_into_one(starts: dict[int, int]) -> Feed[bytes]:
    """Of a topic that had two partitions, of one and of three records, and has one now."""
    former = FormerVersion(1, (0, 0), (1, 3))
    topic = Topic("t", 1, version=2, after=(1,), former=(former,))
    feed: Feed[bytes] = Feed(
        starts, capacity=9, capacity_bytes=10_000, read_limit=3, lineage=lineage_of(topic)
    )
    feed.release({})
    return feed


def test_in_doubt_the_end_of_a_version_is_read_before_anything_of_the_next() -> None:
    feed = two_into_one({0: 1, 1: 2})
    feed.read_former()
    assert feed.deliver(0, 2, b"{}") is Delivered.DEFERRED
    reads = []
    while (read := feed.next_read()) is not None:
        reads.append((read.partition, read.after_seq))
        feed.replayed(read, read.after_seq + 1, [(read.after_seq + 1, b"{}")])
    assert reads == [(1, 2), (0, 1)]


def test_in_doubt_nothing_is_read_behind_what_has_come_already() -> None:
    """When that came, all was sure: what it went on without is a dead letter."""
    feed = two_into_one({0: 1, 1: 2})
    assert feed.deliver(0, 2, b"{}") is Delivered.QUEUED
    feed.read_former()
    assert feed.live
    assert feed.deliver(0, 3, b"{}") is Delivered.QUEUED
